package consul

import (
	"fmt"
	"net"
	"testing"
)

// Ports of one server, on 127.0.0.1. Options decide which of HTTP, HTTPS, GRPC and GRPCTLS are open.
type Ports struct {
	HTTP, HTTPS, GRPC, GRPCTLS, RPC, SerfLAN, DNS int
}

func (p Ports) config(opts Options) map[string]any {
	ports := map[string]any{
		"dns": p.DNS, "serf_wan": -1, "serf_lan": p.SerfLAN, "server": p.RPC,
		"http": p.HTTP, "https": -1, "grpc": p.GRPC, "grpc_tls": -1,
	}
	if opts.TLS {
		ports["http"], ports["https"], ports["grpc_tls"] = -1, p.HTTPS, p.GRPCTLS
		if !opts.PlainGRPC {
			ports["grpc"] = -1
		}
	}
	return ports
}

// freePorts picks ports that were free a moment ago. It holds all until it has found the last one, so that they
// differ.
func freePorts(t testing.TB) Ports {
	t.Helper()
	var held []interface{ Close() error }
	defer func() {
		for _, h := range held {
			_ = h.Close()
		}
	}()
	pick := func() int {
		for range 100 {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatalf("find a free port: %v", err)
			}
			held = append(held, l)
			port := l.Addr().(*net.TCPAddr).Port
			// serf wants the same port for UDP.
			if u, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
				held = append(held, u)
				return port
			}
		}
		t.Fatal("find a free port: none is free for both TCP and UDP")
		return 0
	}
	return Ports{HTTP: pick(), HTTPS: pick(), GRPC: pick(), GRPCTLS: pick(), RPC: pick(), SerfLAN: pick(), DNS: pick()}
}
