package discovery

import (
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Unheard sends a packet of gossip by UDP to each of some members, by name and address, and returns the names of those
// from which no answer comes in time. It needs no Discovery, and makes this host no member of anything.
func Unheard(cfg Config, members map[string]string, within time.Duration) (silent []string, err error) {
	ring, err := keyring(cfg.KeyringFile, cfg.Key)
	if err != nil {
		return nil, err
	}
	ml := memberlist.DefaultLANConfig()
	ml.Name = cfg.Self.Name + "?"
	ml.BindAddr, ml.BindPort, ml.AdvertiseAddr = cfg.Bind, 0, cfg.Advertise
	ml.Keyring, ml.ProbeTimeout, ml.EnableCompression = ring, within, false
	// It announces nothing: a packet has no room for more than the question, and nothing is sent but questions.
	ml.UDPBufferSize, ml.ProbeInterval, ml.PushPullInterval, ml.GossipInterval = 0, 0, 0, 0
	ml.Logger = log.New(io.Discard, "", 0)
	from, err := memberlist.Create(ml)
	if err != nil {
		return nil, fmt.Errorf("open a port for gossip on %s: %w", cfg.Bind, err)
	}
	defer func() { _ = from.Shutdown() }() // nothing was joined
	ml.ProbeInterval = 2 * within          // how long Ping keeps its question; Create would have begun to ask by itself
	var mu sync.Mutex
	var asking sync.WaitGroup
	for name, address := range members {
		asking.Go(func() {
			to, err := net.ResolveUDPAddr("udp", address)
			if err == nil {
				_, err = from.Ping(name, to)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				silent = append(silent, name)
			}
		})
	}
	asking.Wait()
	slices.Sort(silent)
	return silent, nil
}
