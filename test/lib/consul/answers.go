package consul

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/pannier/pannier/sdk/service"
)

// Answers is a server in the place of a Consul that answers what it is given, for fuzz tests: no real Consul lies.
type Answers struct {
	// Service is where it is.
	Service service.Consul

	mu    sync.Mutex
	lines [][]byte
	asked int
}

// NewAnswers serves until the test's end.
func NewAnswers(tb testing.TB) *Answers {
	tb.Helper()
	a := &Answers{}
	s := httptest.NewServer(a)
	tb.Cleanup(s.Close)
	a.Service = service.Consul{Name: "default", Address: s.URL}
	return a
}

// Give sets the answers, one a line, which it gives in turn: a code of HTTP and a space may come first.
func (a *Answers) Give(text []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines, a.asked = bytes.Split(text, []byte("\n")), 0
}

func (a *Answers) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	line := a.lines[a.asked%len(a.lines)]
	a.asked++
	a.mu.Unlock()
	if first, rest, found := bytes.Cut(line, []byte(" ")); found {
		if code, err := strconv.Atoi(string(first)); err == nil && code >= 200 && code <= 599 {
			line = rest
			w.WriteHeader(code)
		}
	}
	_, _ = w.Write(line)
}
