package security_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/serf/serf"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// wiretap collects the gossip sent to a host.
type wiretap struct {
	fd   int
	done chan struct{}

	mu      sync.Mutex
	packets [][]byte
}

// tap starts to collect.
func tap(t *testing.T, h *testhost.Host) *wiretap {
	t.Helper()
	w := &wiretap{done: make(chan struct{})}
	err := h.Net.Do(func() (err error) {
		network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(network)); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	go w.read(stop)
	t.Cleanup(func() {
		close(stop)
		<-w.done
		_ = unix.Close(w.fd)
	})
	return w
}

func (w *wiretap) read(stop chan struct{}) {
	defer close(w.done)
	buf := make([]byte, 64<<10)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, _, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil || n < 28 || buf[9] != unix.IPPROTO_UDP { // RFC 791, RFC 768
			continue
		}
		udp := buf[int(buf[0]&15)*4 : n]
		if binary.BigEndian.Uint16(udp[2:]) == testcluster.SerfPort {
			w.mu.Lock()
			w.packets = append(w.packets, bytes.Clone(udp[8:]))
			w.mu.Unlock()
		}
	}
}

func (w *wiretap) all() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.packets)
}

// Gossip that was recorded while a node was dead has no effect when it is replayed. Gossip with another key
// or without encryption is ignored.
func replayedGossip(t *testing.T, i intruder) {
	leader, n2 := i.c.Leader(), i.c.Host("node-2")
	heard := tap(t, leader)
	alive := func(want string) {
		t.Helper()
		leader.Eventually("node-2 is "+want, func() error {
			out := leader.Run("server", "members")
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, n2.Name+" ") && strings.Contains(line, " "+want+" ") {
					return nil
				}
			}
			return errors.New(out)
		})
	}
	n2.Kill()
	alive("failed")
	n2.Launch()
	alive("alive")
	again := heard.all()
	if len(again) == 0 {
		t.Fatal("no gossip was heard")
	}
	for _, p := range again {
		if bytes.Contains(p, []byte(n2.Name)) {
			t.Error("gossip is in clear")
		}
	}
	send := func(packets ...[]byte) {
		t.Helper()
		err := i.net.Do(func() error {
			for _, h := range i.c.Hosts {
				conn, err := net.Dial("udp", netip.AddrPortFrom(h.Net.Addr, testcluster.SerfPort).String())
				if err != nil {
					return err
				}
				for _, p := range packets {
					if _, err := conn.Write(p); err != nil {
						return errors.Join(err, conn.Close())
					}
				}
				if err := conn.Close(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		send(again...)
	}
	damaged := bytes.Clone(again[0])
	damaged[len(damaged)/2] ^= 1
	send(damaged, []byte("in clear"), nil, bytes.Repeat([]byte{0}, 60_000))
	logged(i.c.Servers(), "ecrypt")

	for _, key := range [][]byte{nil, bytes.Repeat([]byte{7}, 32)} {
		if err := join(t, i, key); err == nil {
			t.Errorf("an agent with the wrong key %x joined", key)
		}
	}
	for _, h := range i.c.Hosts {
		h.Eventually(h.Name+" sees all members alive", func() error { // a host's own messages may arrive late
			out := h.Run("server", "members")
			if strings.Contains(out, "stranger") {
				t.Errorf("%s sees a stranger:\n%s", h.Name, out)
			}
			if strings.Count(out, "alive") != len(i.c.Hosts) {
				return errors.New(out)
			}
			return nil
		})
	}
}

// join tries to gossip with the cluster from the intruder's network.
func join(t *testing.T, i intruder, key []byte) error {
	t.Helper()
	conf := serf.DefaultConfig()
	conf.NodeName, conf.LogOutput = "stranger", io.Discard
	conf.MemberlistConfig.BindAddr, conf.MemberlistConfig.BindPort = i.net.Addr.String(), testcluster.SerfPort
	conf.MemberlistConfig.LogOutput, conf.MemberlistConfig.SecretKey = io.Discard, key
	conf.MemberlistConfig.TCPTimeout = 5 * time.Second
	return i.net.Do(func() error {
		s, err := serf.Create(conf)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = s.Shutdown()
			<-s.ShutdownCh()
		}()
		_, err = s.Join([]string{netip.AddrPortFrom(i.c.Hosts[0].Net.Addr, testcluster.SerfPort).String()}, true)
		return err
	})
}
