package transport

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
)

// A connection is shared while it is used, and closed when it has not been used for a while.
func TestUnusedConnectionsAreClosed(t *testing.T) {
	d := NewDialer(pkitest.New(t).Certs(t, pki.Server, "a"))
	first, err := d.Conn("127.0.0.1:1", "b", pki.Server)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Conn("127.0.0.1:1", "b", pki.Server); err != nil || again != first {
		t.Errorf("it is not shared: %v", err)
	}
	for _, other := range []target{
		{"127.0.0.1:2", "b", pki.Server},
		{"127.0.0.1:1", "c", pki.Server},
		{"127.0.0.1:1", "b", pki.Node},
	} {
		if conn, err := d.Conn(other.addr, other.name, other.role); err != nil || conn == first {
			t.Errorf("%v is taken for another: %v", other, err)
		}
	}
	d.mu.Lock()
	for _, p := range d.conns {
		p.taken = time.Now().Add(-time.Hour)
	}
	d.mu.Unlock()
	next, err := d.Conn("127.0.0.1:3", "b", pki.Server)
	if err != nil || len(d.conns) != 1 {
		t.Errorf("%d connections are kept, %v", len(d.conns), err)
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	if next.GetState().String() != "SHUTDOWN" {
		t.Errorf("a connection is %s after the end", next.GetState())
	}
	if _, err := d.Conn("127.0.0.1:1", "b", pki.Server); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
