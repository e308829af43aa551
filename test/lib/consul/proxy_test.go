package consul

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// TestProxy checks the effect of each fault on a client, and that the faults end.
func TestProxy(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{ACL: true, TLS: true})
	p := c.Proxy(t, 0)
	client, err := api.NewClient(&api.Config{
		Address: p.Service(c.Service("default", "")).Address, Token: c.Management,
		HttpClient: &http.Client{Transport: c.transport},
	})
	if err != nil {
		t.Fatal(err)
	}
	put := func(ctx context.Context, key string) error {
		_, err := client.KV().Put(&api.KVPair{Key: key}, (&api.WriteOptions{}).WithContext(ctx))
		return err
	}
	stored := func(key string) bool {
		pair, _, err := c.Client(c.Management).KV().Get(key, nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair != nil
	}
	ctx := t.Context()

	p.Add(Match{Method: http.MethodPut, Path: "/v1/kv/", Times: 2}, Status(429, "slow down"))
	for range 2 {
		var status api.StatusError
		if err := put(ctx, "a"); !errors.As(err, &status) || status.Code != 429 {
			t.Errorf("got %v, want 429", err)
		}
	}
	if err := put(ctx, "a"); err != nil {
		t.Errorf("the third: %v", err)
	}
	if n := p.Count(http.MethodPut, "/v1/kv/a"); n != 3 {
		t.Errorf("%d requests counted, want 3: %q", n, p.Requests())
	}

	p.Add(Match{Path: "/v1/kv/refused", Times: 1}, Refuse())
	if err := put(ctx, "refused"); err == nil || stored("refused") {
		t.Errorf("refused: got %v, stored: %v", err, stored("refused"))
	}
	p.Add(Match{Path: "/v1/kv/cut", Times: 1}, Cut())
	if err := put(ctx, "cut"); err == nil || !stored("cut") {
		t.Errorf("cut: got %v, stored: %v", err, stored("cut"))
	}

	p.Add(Match{Path: "/v1/kv/stalled"}, Stall())
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := put(short, "stalled"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stalled: got %v", err)
	}
	answer := make(chan error, 1)
	go func() { answer <- put(ctx, "stalled") }()
	for p.Count("", "/v1/kv/stalled") < 2 {
		time.Sleep(time.Millisecond)
	}
	p.Clear()
	if err := <-answer; err != nil || !stored("stalled") {
		t.Errorf("no longer stalled: %v, stored: %v", err, stored("stalled"))
	}

	p.Down()
	if err := put(ctx, "down"); err == nil {
		t.Error("an answer while the proxy is down")
	}
	p.Up(t)
	if err := put(ctx, "up"); err != nil {
		t.Error(err)
	}
}
