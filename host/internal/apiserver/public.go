package apiserver

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/apiserver/call"
)

const (
	// readTimeout is how long a caller may take to read an answer that everybody may have.
	readTimeout = 5 * time.Second
	// The number of callers that may read the metrics at a time: from one address, and from all. Each holds one answer
	// in memory.
	maxReaders, maxReadersInAll = 4, 64
)

// heldAnswer is an answer in memory.
type heldAnswer struct {
	header http.Header
	code   int
	bytes.Buffer
}

func (a *heldAnswer) Header() http.Header { return a.header }

func (a *heldAnswer) WriteHeader(code int) { a.code = code }

// prompt answers when h has ended, and cuts off a caller that does not read the answer within readTimeout.
func prompt(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a := heldAnswer{header: w.Header(), code: http.StatusOK}
		h(&a, r)
		w.Header().Set("Content-Length", strconv.Itoa(a.Len()))
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(readTimeout)) // an error of any of these: the caller is gone
		w.WriteHeader(a.code)
		_, _ = w.Write(a.Bytes())
		if control.Flush() == nil {
			_ = control.SetWriteDeadline(time.Time{}) // for the next request on this connection
		}
	}
}

// readers counts who reads the metrics, by address.
type readers struct {
	mu   sync.Mutex
	from map[string]int
	all  int
}

// shared runs h for a bounded number of callers at a time, so that one of them cannot keep the others out.
func (c *readers) shared(h http.HandlerFunc) http.HandlerFunc {
	refused := prompt(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("too many callers read this: at most %d from one address may, and %d in all", maxReaders,
			maxReadersInAll), http.StatusServiceUnavailable)
	})
	return func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr) // empty: the unix socket, or a plugin
		c.mu.Lock()
		full := c.from[from] >= maxReaders || c.all >= maxReadersInAll
		if !full {
			c.from[from]++
			c.all++
		}
		c.mu.Unlock()
		if full {
			refused(w, r)
			return
		}
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.all--
			if c.from[from]--; c.from[from] == 0 {
				delete(c.from, from)
			}
		}()
		h(w, r)
	}
}

// byOwnName answers requests to this host only. A page in a browser could let its own name resolve to the agent's
// address, and read what is answered to that name (DNS rebinding). It has no such power over an IP address.
func (s *Server) byOwnName(next http.Handler) http.Handler {
	own := map[string]bool{"": true, "localhost": true, strings.ToLower(s.cfg.Name): true} // HTTP/1.0 may send none
	if hostname, err := os.Hostname(); err == nil {
		own[strings.ToLower(hostname)] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || own[host] {
			next.ServeHTTP(w, r)
			return
		}
		prompt(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, fmt.Sprintf("this host is not %q: use its address, localhost or its name %q", call.Shortened(host),
				s.cfg.Name), http.StatusMisdirectedRequest)
		})(w, r)
	})
}
