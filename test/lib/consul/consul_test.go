package consul

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// TestStart checks that one server answers on every configured address.
func TestStart(t *testing.T) {
	for name, opts := range map[string]Options{
		"plain":       {},
		"acl":         {ACL: true},
		"tls":         {TLS: true, PlainGRPC: true},
		"acl and tls": {ACL: true, TLS: true, HTTPConns: 200},
		"mutual tls":  {ACL: true, TLS: true, ClientCerts: true, Config: `log_level = "info"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			c := Start(t, opts)
			t.Logf("one server answered only after %v", time.Since(begin).Round(time.Millisecond))

			out, err := c.Command(c.Management, "members").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "server-0") {
				t.Errorf("consul members: %v\n%s", err, out)
			}
			if _, err := os.Stat(c.CAFile()); (err == nil) != opts.TLS {
				t.Errorf("the CA's file: %v", err)
			}
		})
	}
}

// TestACL checks that a token may do only what its policies allow.
func TestACL(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{ACL: true, TLS: true})
	if n := len(c.Tokens(t)); n != 2 {
		t.Errorf("%d tokens, want the anonymous and the management token", n)
	}
	if _, _, err := c.Client("").ACL().TokenList(nil); !refused(err) {
		t.Errorf("listing tokens without a token: got %v, want 403", err)
	}
	if _, _, err := c.Client("").KV().Get("k", nil); !refused(err) {
		t.Errorf("reading a key without a token: got %v, want 403", err)
	}
	c.Policy(t, "reader", `acl = "read"`)
	reader := c.Client(c.Token(t, "reader")).ACL()
	if tokens, _, err := reader.TokenList(nil); err != nil || len(tokens) != 3 {
		t.Errorf("got %d tokens, %v", len(tokens), err)
	}
	if _, _, err := reader.TokenCreate(&api.ACLToken{}, nil); !refused(err) {
		t.Errorf("writing with a read-only token: got %v, want 403", err)
	}
}

// TestLeaderless kills two servers of three: the third has no leader until one is back.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	c := Start(t, Options{Servers: 3, ACL: true, TLS: true})
	t.Logf("three servers answered only after %v", time.Since(begin).Round(time.Millisecond))
	secret := c.Token(t)

	c.Kill(1)
	c.Kill(2)
	kv := c.Client(c.Management).KV()
	put := func() error {
		_, err := kv.Put(&api.KVPair{Key: "k"}, nil)
		return err
	}
	if err := put(); err == nil {
		t.Error("a write without a majority")
	}
	begin = time.Now()
	c.Restart(1, false)
	t.Logf("a leader was elected only after %v", time.Since(begin).Round(time.Millisecond))
	if err := put(); err != nil {
		t.Error(err)
	}
	c.Restart(2, true)
	if _, _, err := c.ClientOf(2, secret).ACL().TokenReadSelf(nil); err != nil {
		t.Errorf("the server that lost its state did not get the: %v", err)
	}
}

// TestRestart checks that the state survives a kill, and is gone after a restart that deletes it.
func TestRestart(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{ACL: true})
	secret := c.Token(t)
	c.Restart(0, false)
	if _, _, err := c.Client(secret).ACL().TokenReadSelf(nil); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	c.Restart(0, true)
	if _, _, err := c.Client(secret).ACL().TokenReadSelf(nil); !refused(err) {
		t.Errorf("after the loss of the state: got %v, want 403", err)
	}
}

// TestPortTaken occupies each port of a stopped server in turn: its start is retried until the port is free.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{ACL: true, TLS: true})
	s := c.Servers[0]
	for _, port := range []int{s.Ports.HTTPS, s.Ports.GRPCTLS, s.Ports.RPC, s.Ports.SerfLAN} {
		c.Kill(0)
		taken, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		before := len(s.Log())
		released := make(chan struct{})
		go func() {
			defer close(released)
			defer taken.Close()
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if strings.Contains(s.Log()[before:], "address already in use") {
					return
				}
			}
			t.Errorf("the server started although port %d was taken", port)
		}()
		c.Restart(0, false)
		<-released
	}
}

// TestPause checks that a paused server does not answer until it is resumed.
func TestPause(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	c.Pause(0)
	answer := make(chan error, 1)
	go func() {
		_, err := c.Client("").Agent().Self()
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Fatalf("a paused server answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	c.Resume(0)
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func refused(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code == http.StatusForbidden
}
