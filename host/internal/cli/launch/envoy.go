package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
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

// adminOf returns the network and the address of the admin API in a bootstrap; empty: it has none.
func adminOf(bootstrap string) (network, address string) {
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
	if at.Socket.Port != 0 {
		return "tcp", net.JoinHostPort(at.Socket.Address, strconv.Itoa(at.Socket.Port))
	}
	return "unix", at.Pipe.Path
}

// serves reports whether the process of a base ID and an epoch serves, by the admin API, which is the newest process's.
func serves(ctx context.Context, network, admin string, baseID, epoch int) bool {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, admin)
		},
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy/server_info", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var info struct {
		State   string `json:"state"`
		Options struct {
			BaseID string `json:"base_id"`
			Epoch  int    `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&info)
	return err == nil && info.State == "LIVE" && info.Options.BaseID == strconv.Itoa(baseID) && info.Options.Epoch == epoch
}
