package testnet_test

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needNet skips the test if the machine does not allow network namespaces and TUN devices.
func needNet(t *testing.T) {
	t.Helper()
	testbin.RequireRoot(t, "network namespaces")
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("not covered: hosts with networks of their own: %v", err)
	}
}

// post opens a UDP socket on a host.
func post(t *testing.T, h *testnet.Host) net.PacketConn {
	t.Helper()
	var conn net.PacketConn
	err := h.Do(func() (err error) {
		var listen net.ListenConfig
		conn, err = listen.ListenPacket(t.Context(), "udp4", h.Addr.String()+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// send sends n datagrams from one host to another. It then heals the link, sends a marker, and returns how
// many of the datagrams arrived.
func send(t *testing.T, n int, a, b *testnet.Host, heal func()) (came int) {
	t.Helper()
	from, to := post(t, a), post(t, b)
	for range n {
		if _, err := from.WriteTo([]byte("letter"), to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	heal()
	if err := to.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 64); ; {
		if _, err := from.WriteTo([]byte("last"), to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		size, _, err := to.ReadFrom(buf)
		switch {
		case err != nil:
			t.Fatal(err)
		case string(buf[:size]) == "last":
			return came
		}
		came++
	}
}

func TestLinks(t *testing.T) {
	needNet(t)
	n := testnet.New(t, 1)
	a, b := n.Host("a"), n.Host("b")
	if came := send(t, 10, a, b, n.Heal); came != 10 {
		t.Errorf("%d of 10 arrived over an intact link", came)
	}
	n.Set(b, a, testnet.Link{Cut: true}) // only the other direction
	if came := send(t, 10, a, b, n.Heal); came != 10 {
		t.Errorf("%d of 10 arrived while only the other direction was cut", came)
	}
	hosts := 0
	settle := func() {
		// One goroutine passes the packets on in order. When a packet to another host has arrived, all
		// earlier packets have been passed on or dropped.
		hosts++
		other := n.Host(strings.Repeat("c", hosts))
		n.Set(a, other, testnet.Link{})
		if came := send(t, 1, a, other, func() {}); came != 1 {
			t.Errorf("%d of 1 arrived over an intact link", came)
		}
		n.Heal()
	}
	n.Part(a)
	if came := send(t, 10, a, b, settle); came != 0 {
		t.Errorf("%d of 10 arrived over a cut link", came)
	}
	n.SetAll(testnet.Link{Loss: 0.3})
	if came := send(t, 100, a, b, settle); came < 50 || came > 90 {
		t.Errorf("%d of 100 arrived over a link that loses 30%%", came)
	}
	n.SetAll(testnet.Link{Delay: 50 * time.Millisecond})
	begun := time.Now()
	if send(t, 1, a, b, func() {}); time.Since(begun) < 50*time.Millisecond {
		t.Error("a packet arrived before its delay")
	}
}
