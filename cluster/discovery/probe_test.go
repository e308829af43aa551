package discovery_test

import (
	"encoding/base64"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/test/lib/check"
)

// A probe tells agents that answer by UDP from those that do not, and joins nothing.
func TestUnheard(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))
	a := open(t, discovery.Config{Self: self("a"), Key: key})
	b := open(t, discovery.Config{Self: self("b"), Key: key})
	tcp, err := net.Listen("tcp", "127.0.0.1:0") // no UDP
	check.NoError(t, err)
	defer tcp.Close()
	members := map[string]string{"a": a.Addr(), "b": b.Addr(), "c": tcp.Addr().String()}
	cfg := discovery.Config{Self: self("b"), Bind: "127.0.0.1", Key: key}
	silent, err := discovery.Unheard(cfg, members, 500*time.Millisecond)
	if err != nil || !slices.Equal(silent, []string{"c"}) {
		t.Errorf("%q do not answer, %v", silent, err)
	}
	cfg.Key = base64.StdEncoding.EncodeToString([]byte("another-key-0123"))
	silent, err = discovery.Unheard(cfg, members, 500*time.Millisecond)
	if err != nil || !slices.Equal(silent, []string{"a", "b", "c"}) {
		t.Errorf("with another key %q do not answer, %v", silent, err)
	}
	for _, d := range []*discovery.Discovery{a, b} {
		if all := d.Members(); len(all) != 1 {
			t.Errorf("the probe was taken for a member: %+v", all)
		}
	}
}
