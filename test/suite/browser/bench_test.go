package browser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/suite/chromium"
)

// BenchmarkPages takes all measurements once, regardless of b.N.
func BenchmarkPages(b *testing.B) {
	measure.Section(b, "pages", "Pages of the plugin web in Chromium, with 10,000 volumes", measurePages)
}

// measurePages opens pages of the plugin web in Chromium, and the same bytes from a server that does nothing else.
func measurePages(b *testing.B, r *table.Section) {
	const (
		volumes = 10_000
		warmUp  = 10
		turns   = 30
		target  = 100 // milliseconds
		weight  = 150 // KiB
	)
	browser := chromium.New(b)
	address := testhost.FreeAddress(b, "127.0.0.1")
	h := testhost.New(b, fmt.Sprintf(`%s
leave_plugins_on_stop = false
plugin "web" {
  user = "nobody"
  listen "http" {
    address = %q
  }
  api {}
}
`, testhost.LocalDriver(b), address), "web")
	h.Start()
	api := h.Client().Volumes
	var creating errgroup.Group
	creating.SetLimit(16)
	for n := range volumes {
		creating.Go(func() error {
			_, err := api.CreateVolume(b.Context(), &hostv1.CreateVolumeRequest{Spec: &hostv1.VolumeSpec{
				Id: fmt.Sprintf("volume-%05d", n), Type: "csi", PluginId: "local", CapacityMin: 64 << 20, CapacityMax: 64 << 20,
				Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
			}})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		b.Fatal(err)
	}
	site := "http://" + address
	h.Eventually("the pages are served", func() error {
		_, _, err := fetch(b.Context(), site+"/volumes")
		return err
	})
	bare := httptest.NewServer(&replay{site: site, answers: map[string]reply{}})
	b.Cleanup(bare.Close)
	pages := []struct {
		what string
		url  string
		load loads
	}{
		{what: "the list", url: site + "/volumes"},
		{what: "the overview", url: site + "/"},
		{what: "the list's bytes from a bare server", url: bare.URL + "/volumes"},
	}
	for n := range measure.Turns(warmUp+turns, time.Minute) {
		for at := range pages {
			if n == warmUp {
				pages[at].load = loads{}
			}
			pages[at].load.open(b, browser, pages[at].url)
		}
	}
	for n, p := range pages {
		painted := p.load.painted.Row(p.what+", nothing cached: first contentful paint, p50", 0.5)
		if n < 2 {
			painted = painted.Most(target)
		}
		loaded := table.Of(p.what+", nothing cached: the page with its scripts and styles", "KiB", p.load.weight)
		r.Add(painted, p.load.answered.Row("of that until the first byte, p50", 0.5), loaded.Most(weight))
	}
}

// loads are how long the loads of a page took, and how much was loaded in KiB.
type loads struct {
	painted, answered table.Samples
	weight            []float64
}

// open opens a page with an empty cache. Its times count from the begin of the navigation
// (https://www.w3.org/TR/paint-timing/).
func (l *loads) open(b *testing.B, browser context.Context, url string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(browser, time.Minute)
	defer cancel()
	type times struct{ Painted, Answered, Bytes float64 }
	await := func(p *runtime.EvaluateParams) { wait := true; p.AwaitPromise = &wait }
	_, err := chromedp.Run(ctx, chromedp.Steps(
		chromium.Call(network.ClearBrowserCache, cdp.Empty{}), chromedp.Navigate(url)))
	if err != nil {
		b.Fatal(err)
	}
	t, err := chromedp.Run(ctx, chromedp.Evaluate[times](`new Promise(done => {
		new PerformanceObserver(list => {
			const paint = list.getEntriesByName('first-contentful-paint')[0];
			if (!paint) return;
			const page = performance.getEntriesByType('navigation')[0];
			const loaded = [page, ...performance.getEntriesByType('resource')];
			done({
				Painted: paint.startTime, Answered: page.responseStart,
				Bytes: loaded.reduce((sum, one) => sum + one.transferSize, 0),
			});
		}).observe({type: 'paint', buffered: true});
	})`, await))
	if err != nil {
		b.Fatal(err)
	}
	milliseconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
	l.painted = append(l.painted, milliseconds(t.Painted))
	l.answered = append(l.answered, milliseconds(t.Answered))
	l.weight = append(l.weight, t.Bytes/(1<<10))
}

// reply is an answer of the pages.
type reply struct {
	header http.Header
	body   []byte
}

// fetch gets an answer, which must be a good one.
func fetch(ctx context.Context, url string) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(res.Status))
	}
	return res.Header, body, err
}

// replay gives the answers of the pages again, each as it was the first time.
type replay struct {
	site string

	mu      sync.Mutex
	answers map[string]reply
}

// ServeHTTP implements http.Handler. A page is not kept up to date.
func (p *replay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("live") {
		http.NotFound(w, r)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a, known := p.answers[r.URL.Path]
	if !known {
		var err error
		if a.header, a.body, err = fetch(r.Context(), p.site+r.URL.Path); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		p.answers[r.URL.Path] = a
	}
	for _, name := range []string{"Content-Type", "Cache-Control", "Content-Security-Policy"} {
		if value := a.header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	_, _ = w.Write(a.body) // an error: the browser has gone on
}
