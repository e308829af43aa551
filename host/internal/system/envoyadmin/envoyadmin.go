// Package envoyadmin calls the admin API of an Envoy, or its readiness endpoint.
package envoyadmin

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxAnswer = 1 << 20 // bytes
	maxReason = 500     // of an answer that is quoted, in characters
)

// Client calls one address. It keeps no connection: another process may take the address over.
type Client struct{ http http.Client }

// New makes a client of an address; each call has the timeout.
func New(network, address string, timeout time.Duration) *Client {
	return &Client{http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}}
}

// Get returns an answer of at most 1 MiB. One with another status than 200 is an error.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.ask(ctx, http.MethodGet, path)
}

// Post is Get for what changes something.
func (c *Client) Post(ctx context.Context, path string) error {
	_, err := c.ask(ctx, http.MethodPost, path)
	return err
}

func (c *Client) ask(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("it answers %s: %.*s", resp.Status, maxReason, strings.TrimSpace(string(text)))
	}
	return text, err
}

// Stats returns the counters and gauges whose names match a regular expression.
func (c *Client) Stats(ctx context.Context, names string) (map[string]int, error) {
	text, err := c.Get(ctx, "/stats?filter="+url.QueryEscape(names))
	if err != nil {
		return nil, err
	}
	stats := map[string]int{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		stats[name], _ = strconv.Atoi(value)
	}
	return stats, nil
}
