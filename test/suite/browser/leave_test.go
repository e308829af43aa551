package browser

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pannier/pannier/test/lib/check"
)

// A page that is left before its stream has begun gives its connection back: a browser has six for a site, and keeps a
// page that waits for an answer, for the way back.
func TestPageThatIsLeftEarly(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	slow := &slowStreams{begun: make(chan struct{}), held: map[string]int{}}
	pages := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.address})
	site := httptest.NewServer(slow.before(pages))
	t.Cleanup(site.Close)
	b := newBrowser(t)
	b.open(site.URL + "/sign-in")
	b.enter(r.reader)
	b.until("the overview is open", `location.pathname == "/"`)
	b.eval(`addEventListener("pagehide", event => sessionStorage.kept = event.persisted)`)
	slow.await(t, "/")
	for _, path := range []string{
		"/volumes", "/workloads", "/nodes", "/drivers", "/plugins", "/services", "/releases", "/events",
	} {
		b.leave(fmt.Sprintf(`document.querySelector("nav a[href='%s']")`, path))
		slow.await(t, path)
	}
	if kept := value[string](b, "sessionStorage.kept"); kept != "true" {
		t.Errorf("the browser keeps no page for the way back: %s", kept)
	}
	b.do("go back", chromedp.NavigateBack())
	b.until("the page before is open", `location.pathname == "/releases"`)
	slow.await(t, "/releases")
	b.do("go forward", chromedp.NavigateForward())
	b.until("the next page is open", `location.pathname == "/events"`)
	slow.await(t, "/events")
	close(slow.begun)
	b.live()
}

// A page is kept up to date also where the script that does it arrives after htmx has been loaded.
func TestScriptThatIsLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	next := httputil.NewSingleHostReverseProxy(check.Must(url.Parse("http://" + r.address))(t))
	next.ModifyResponse = func(answer *http.Response) error {
		answer.Header.Set("Cache-Control", "no-store") // each page asks for its scripts
		return nil
	}
	var hold atomic.Bool
	come := make(chan struct{})
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hold.Load() && strings.HasSuffix(r.URL.Path, "/hx-sse.min.js") {
			<-come
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(site.Close)
	late := sync.OnceFunc(func() { close(come) })
	t.Cleanup(late)
	b := newBrowser(t)
	b.open(site.URL + "/sign-in")
	b.enter(r.reader)
	b.until("the overview is open", `location.pathname == "/"`)
	b.live()
	hold.Store(true)
	b.eval(`location.href = "/nodes"`)
	b.until("htmx is there", `location.pathname == "/nodes" && typeof htmx == "object"`)
	b.until("what htmx had to do next is done", `(window.next ??= setTimeout(() => window.done = true), window.done == true)`)
	late()
	b.live()
}

// slowStreams holds the requests for what keeps pages up to date until begun is closed.
type slowStreams struct {
	begun chan struct{}

	mu   sync.Mutex
	held map[string]int // by path
}

// before passes all other requests on at once.
func (s *slowStreams) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("live") {
			s.count(r.URL.Path, 1)
			defer s.count(r.URL.Path, -1)
			select {
			case <-s.begun:
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (s *slowStreams) count(path string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[path] += n; s.held[path] == 0 {
		delete(s.held, path)
	}
}

// await waits until the stream of one page is asked for, and no other.
func (s *slowStreams) await(t *testing.T, path string) {
	t.Helper()
	check.Eventually(t, "only the stream of "+path+" is open", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return maps.Equal(s.held, map[string]int{path: 1})
	})
}
