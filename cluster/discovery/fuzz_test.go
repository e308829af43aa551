package discovery_test

import (
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/test/lib/check"
)

// FuzzGossip sends any bytes to an agent that gossips without a key, in a packet and over a connection. The agent is
// the only member that it believes in after them, unless they say what an agent says; and it still gossips.
func FuzzGossip(f *testing.F) {
	d := open(f, discovery.Config{Self: self("a")})
	// The first byte is memberlist's type of the message: ping to user data, compressed, with a checksum (go doc
	// memberlist, net.go); for user data the next is serf's.
	for kind := range byte(14) {
		f.Add([]byte{kind, 0x81, 0xa4, 'N', 'o', 'd', 'e', 0xa1, 'x'})
	}
	for kind := range byte(12) {
		f.Add(append([]byte{8, kind}, "\x83\xa5LTime\x01\xa4Node\xa1a\xa5Prune\xc3"...))
	}
	f.Add([]byte{7, 3, 0, 1, 0, 1, 0, 1, 0, 0, 0})
	f.Add([]byte{12, 0, 0, 0, 0, 8})
	f.Add([]byte{10, 0x82, 0xa4, 'A', 'l', 'g', 'o', 0, 0xa3, 'B', 'u', 'f', 0xc6, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, bytes []byte) {
		packet, err := net.Dial("udp", d.Addr())
		check.NoError(t, err)
		defer packet.Close()
		_, _ = packet.Write(bytes) // fails if it is too long
		conn, err := net.Dial("tcp", d.Addr())
		check.NoError(t, err)
		defer conn.Close()
		_, _ = conn.Write(bytes)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(deadline))
		for buf := make([]byte, 512); ; {
			if _, err := conn.Read(buf); err != nil {
				if strings.Contains(err.Error(), "timeout") {
					t.Errorf("the connection is not ended: %v", err)
				}
				break
			}
		}
		answers(t, d)
		if m, ok := d.Member("a"); !ok || m.Status != discovery.Alive {
			t.Fatalf("it sees itself as %v", m)
		}
	})
}

// answers checks that an agent answers a ping.
func answers(t *testing.T, d *discovery.Discovery) {
	t.Helper()
	conn, err := net.Dial("udp", d.Addr())
	check.NoError(t, err)
	defer conn.Close()
	port := conn.LocalAddr().(*net.UDPAddr).Port
	ping := []byte{0, 0x84, 0xa5}
	ping = append(append(ping, "SeqNo"...), 7, 0xa4)
	ping = append(append(ping, "Node"...), 0xa1, 'a', 0xaa)
	ping = append(append(ping, "SourceAddr"...), 0xc4, 4, 127, 0, 0, 1, 0xaa)
	ping = binary.BigEndian.AppendUint16(append(append(ping, "SourcePort"...), 0xcd), uint16(port))
	_ = conn.SetReadDeadline(time.Now().Add(deadline))
	if _, err := conn.Write(ping); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, memberlist.DefaultLANConfig().UDPBufferSize)); err != nil {
		t.Fatalf("it does not gossip any more: %v", err)
	}
}
