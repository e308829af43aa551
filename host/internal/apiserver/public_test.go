package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/pannier/pannier/test/lib/check"
)

// A page in a browser on this machine can let its own name resolve to the agent's address, and then read what the agent
// answers to that name (DNS rebinding).
func TestRebinding(t *testing.T) {
	h := openHost(t)
	_, port, err := net.SplitHostPort(h.HTTPAddress())
	check.NoError(t, err)
	hostname, err := os.Hostname()
	check.NoError(t, err)
	get := func(host, path string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(h.ctx, http.MethodGet, "http://"+h.HTTPAddress()+path, nil)
		check.NoError(t, err)
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		check.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		check.NoError(t, err)
		return resp, string(body)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, host := range []string{
		"attacker.example:" + port, "attacker.example", "n1.attacker.example", "localhost.attacker.example",
		"127.0.0.1.attacker.example", "1.attacker.example:" + port,
	} {
		for _, path := range []string{"/v1/health", "/v1/metrics", "/.well-known/jwks.json"} {
			if resp, body := get(host, path); resp.StatusCode != http.StatusMisdirectedRequest ||
				!strings.Contains(body, `use its address, localhost or its name "n1"`) || strings.Contains(body, "pannier_") {
				t.Errorf("%s of %s: %s: %.80s", path, host, resp.Status, body)
			}
		}
	}
	for _, host := range []string{
		"127.0.0.1:" + port, "127.0.0.1", "[::1]:" + port, "[::1]", "192.0.2.10:7420", "localhost:" + port, "LOCALHOST",
		"localhost.", "n1:" + port, hostname,
	} {
		if resp, body := get(host, "/v1/health"); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s: %s", host, resp.Status, body)
		}
	}
}

// slowReader asks for a path over streams of one connection from an address, and never reads an answer: it opens no
// window for them. It waits until count answers have begun, and returns how many streams the server ends with an error.
func slowReader(t *testing.T, from, to, path string, count int) (ended func() int) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	check.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, http2.ClientPreface)
	check.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	check.NoError(t, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	for n := range count {
		var block bytes.Buffer
		headers := hpack.NewEncoder(&block)
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", to}, {":path", path}} {
			check.NoError(t, headers.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
		check.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: uint32(2*n + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
		}))
	}
	read := func() http2.Frame {
		t.Helper()
		check.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("the server does not let go: %v", err)
		}
		if s, ok := frame.(*http2.SettingsFrame); ok && !s.IsAck() {
			check.NoError(t, framer.WriteSettingsAck())
		}
		return frame
	}
	for begun := 0; begun < count; {
		if _, ok := read().(*http2.HeadersFrame); ok {
			begun++
		}
	}
	return func() (n int) {
		for ; n < count; n++ {
			for {
				if _, ok := read().(*http2.RSTStreamFrame); ok {
					break
				}
			}
		}
		return n
	}
}

// Callers that do not read their answers keep nobody else from the metrics, and are cut off.
func TestSlowReadersOfTheMetrics(t *testing.T) {
	h := openHost(t, func(c *parts) {
		series := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "series", Help: "As an agent of some days has."},
			[]string{"n"})
		for n := range 1000 {
			series.WithLabelValues(strconv.Itoa(n)).Set(1)
		}
		c.Metrics.MustRegister(series)
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	const many = 20
	ended := slowReader(t, "127.0.0.2", h.HTTPAddress(), "/v1/metrics", many)
	for range 3 {
		resp, err := http.Get("http://" + h.HTTPAddress() + "/v1/metrics")
		check.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		if check.NoError(t, errors.Join(err, resp.Body.Close())); resp.StatusCode != http.StatusOK ||
			!strings.Contains(string(body), "pannier_volumes") {
			t.Errorf("the metrics: %s: %.80s", resp.Status, body)
		}
	}
	if t.Failed() {
		return
	}
	if n := ended(); n == 0 {
		t.Error("no slow reader was cut off")
	}
}
