package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/system/envoyadmin"
)

// maxBaseID is the highest base ID: Envoy has ten processes for each, and some of its names have 31 bits for them.
const maxBaseID = 1<<31/10 - 1

// sharedMemory is the file that all processes of a base ID share. No process removes it, and one that another user has
// left keeps the base ID from being used.
func sharedMemory(baseID int) string { return fmt.Sprintf("/dev/shm/envoy_shared_memory_%d0", baseID) }

// freeBaseID returns a base ID that no Envoy of the machine has, or has left behind.
func freeBaseID() int {
	for {
		if id := rand.IntN(maxBaseID) + 1; isFree(id) {
			return id
		}
	}
}

// isFree reports whether no file of a base ID is there and no process has the address by which the next one reaches it.
func isFree(baseID int) bool {
	if _, err := os.Lstat(sharedMemory(baseID)); !os.IsNotExist(err) {
		return false
	}
	name := fmt.Sprintf("@envoy_domain_socket_parent_%d0", baseID)
	name += strings.Repeat("\x00", 108-len(name)) // Envoy's address has the whole length
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	return err == nil && conn.Close() == nil
}

// adminTimeout bounds a call of the admin API.
const adminTimeout = time.Second

// adminOf returns the address of the admin API in a bootstrap and a client of it; empty: it has none.
func adminOf(bootstrap string) (address string, api *envoyadmin.Client) {
	text, _ := os.ReadFile(bootstrap)
	var b struct {
		Admin struct {
			Address struct {
				Pipe struct {
					Path string `json:"path"`
				} `json:"pipe"`
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"address"`
		} `json:"admin"`
	}
	_ = json.Unmarshal(text, &b) // another proxy's file may be of any kind
	at := b.Admin.Address
	network, address := "unix", at.Pipe.Path
	if at.Socket.Port != 0 {
		network, address = "tcp", net.JoinHostPort(at.Socket.Address, strconv.Itoa(at.Socket.Port))
	}
	return address, envoyadmin.New(network, address, adminTimeout)
}

// serves reports whether the process of a base ID and an epoch serves, by the admin API, which is the newest process's.
func serves(ctx context.Context, api *envoyadmin.Client, baseID, epoch int) bool {
	var info struct {
		State   string `json:"state"`
		Options struct {
			BaseID string `json:"base_id"`
			Epoch  int    `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	text, err := api.Get(ctx, "/server_info")
	return err == nil && json.Unmarshal(text, &info) == nil && info.State == "LIVE" &&
		info.Options.BaseID == strconv.Itoa(baseID) && info.Options.Epoch == epoch
}

// drain asks an Envoy to end its connections, and waits until what they carry has been sent, or for as long as ctx
// says. Another program does not answer, and is not waited for.
func drain(ctx context.Context, api *envoyadmin.Client, look time.Duration) {
	if api.Post(ctx, "/drain_listeners?graceful") != nil {
		return
	}
	for carries(ctx, api) {
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
}

// carried are the gauges of what an Envoy's connections carry: all connections, those of HTTP, the requests of these,
// and the bytes that are not sent yet. The admin API's own are left out.
var carried = regexp.MustCompile(
	`^(listener|http|tcp)\.(.+)\.(downstream_cx_active|downstream_rq_active|downstream_cx_tx_bytes_buffered)$`)

// carries reports whether an Envoy has a connection of TCP, a request of HTTP, or bytes to send. An idle connection of
// HTTP is none.
func carries(ctx context.Context, api *envoyadmin.Client) bool {
	stats, err := api.Stats(ctx, carried.String())
	if err != nil {
		return false
	}
	count := 0
	for name, value := range stats {
		parts := carried.FindStringSubmatch(name)
		if len(parts) != 4 || strings.HasPrefix(parts[2], "admin") || strings.Contains(parts[2], ".worker_") {
			continue
		}
		if parts[1] == "http" && parts[3] == "downstream_cx_active" {
			count -= value // the listener has counted it
		} else {
			count += value
		}
	}
	return count > 0
}
