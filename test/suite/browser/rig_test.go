package browser

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/suite/chromium"
)

// rig is a host with the plugin web.
type rig struct {
	*testhost.Host
	// address is where the pages listen, named their own name with the port; empty: not known yet.
	address, named string
	// manager, reader and nobody are the secrets of tokens: of one that may do everything, of one that may read, and of
	// one that may see a namespace without volumes.
	manager, reader, nobody string
}

// webBlock is the plugin's block, with an address and more keys of its config.
func webBlock(t *testing.T, address, config string) string {
	return strings.NewReplacer(`"127.0.0.1:7480"`, strconv.Quote(address), "  user = \"nobody\"\n",
		"  user = \"nobody\"\n  config {\n    "+config+"\n  }\n").Replace(docpages.Block(t, "web.md", "config", "web"))
}

// newRig starts a host with ACLs and the pages. config is of the plugin.
func newRig(t *testing.T, config string) *rig {
	t.Helper()
	testbin.RequireRoot(t, "the pages of a real agent")
	r := &rig{address: testhost.FreeAddress(t, "127.0.0.1")}
	r.Host = testhost.New(t, "acl {\n  enabled = true\n}\n"+webBlock(t, r.address, config)+testhost.LocalDriver(t), "web")
	r.Begin()
	r.Eventually("ACLs are bootstrapped", func() error {
		out := r.Try("acl", "bootstrap", "-o", "json")
		if out.Code != 0 {
			return errors.New(out.Stderr)
		}
		var made struct{ Secret string }
		if err := json.Unmarshal([]byte(out.Stdout), &made); err != nil {
			return err
		}
		r.manager = made.Secret
		return nil
	})
	r.Token = r.manager
	r.AwaitReady()
	r.AwaitDrivers()
	r.Run("acl", "policy", "apply", "web", r.Write("web.policy", docpages.Block(t, "web.md", "policy", "web")))
	r.Eventually("the plugin has its token", func() error {
		conn, err := net.Dial("tcp", r.address)
		if err != nil {
			return err
		}
		conn.Close()
		v := r.visit(t, "")
		if res, text := v.post("/sign-in", url.Values{"form": {v.form}, "token": {r.manager}}); res.StatusCode != http.StatusSeeOther {
			return fmt.Errorf("sign in: %s: %s", res.Status, text)
		}
		return nil
	})
	r.reader = r.token("reader", readPolicy(t))
	r.nobody = r.token("nobody", `namespace "elsewhere" { policy = "read" }`)
	return r
}

// readPolicy allows to see all pages.
func readPolicy(t *testing.T) string { return docpages.Block(t, "web.md", "policy", "web-reader") }

// token makes a token with a policy of its name.
func (r *rig) token(name, rules string) string {
	r.Run("acl", "policy", "apply", name, r.Write(name+".policy", rules))
	var made struct{ Secret string }
	if err := json.Unmarshal([]byte(r.Run("acl", "token", "create", "-name", name, "-policy", name, "-o", "json")), &made); err != nil {
		panic(err)
	}
	return made.Secret
}

// url is where a page is: below the pages' own name, once the form to sign in has led there.
func (r *rig) url(path string) string { return "http://" + cmp.Or(r.named, r.address) + path }

// dial connects to the pages by any of their names.
func (r *rig) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, r.address)
}

// volume creates a volume of the local driver.
func (r *rig) volume(id string) {
	r.Run("volume", "create", r.Write("volume.hcl", fmt.Sprintf(`
id           = %q
type         = "csi"
plugin_id    = "local"
capacity_min = "16MiB"
capacity_max = "16MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`, id)))
}

// workload starts a workload with volumes of the same names.
func (r *rig) workload(id string, volumes ...string) {
	var text strings.Builder
	fmt.Fprintf(&text, "workload %q {\n", id)
	for n, v := range volumes {
		fmt.Fprintf(&text, "volume \"v%d\" {\n  source = %q\n  destination = \"/srv/v%d\"\n}\n", n, v, n)
	}
	text.WriteString("}\n")
	r.Run("workload", "start", r.Write("workload.hcl", text.String()))
}

// browser is one window, which fails the test when a page reports an error or asks another host for something.
type browser struct {
	context.Context
	t *testing.T

	mu sync.Mutex
	// wanted are parts of texts in the console that the test expects.
	wanted []string
	// bytes that pages, scripts and styles had.
	bytes float64
}

// newBrowser opens a window. Without a Chromium on this machine the test is skipped.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	b := &browser{Context: chromium.New(t), t: t}
	check.NoError(t, chromedp.Listen(b.Context, b.heard))
	b.do("listen", chromium.Call(network.Enable, network.EnableParams{}), chromium.Call(log.Enable, cdp.Empty{}),
		chromium.Call(runtime.Enable, cdp.Empty{}))
	return b
}

// heard looks at what a page does.
func (b *browser) heard(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if thrown := e.ExceptionDetails.Exception; thrown != nil {
			text += " " + thrown.Description
		}
		b.console(text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			var text []string
			for _, arg := range e.Args {
				text = append(text, string(arg.Value)+arg.Description)
			}
			b.console(strings.Join(text, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.console(e.Entry.Text + " " + e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || u.Hostname() != "127.0.0.1" && !strings.HasSuffix(u.Hostname(), "localhost") &&
			u.Scheme != "data" && u.Scheme != "about" {
			b.t.Errorf("a page asks for %s", e.Request.URL)
		}
	case *network.EventLoadingFinished:
		b.mu.Lock()
		b.bytes += e.EncodedDataLength
		b.mu.Unlock()
	}
}

// expect lets texts in the console pass.
func (b *browser) expect(parts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted = parts
}

func (b *browser) console(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, part := range b.wanted {
		if strings.Contains(text, part) {
			return
		}
	}
	b.t.Errorf("the console of a page says %s", text)
}

// do makes the browser do something, within testhost.Wait.
func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	_ = run(b, what, chromedp.Steps(actions...))
}

// run makes the browser do something that has a result.
func run[T any](b *browser, what string, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, testhost.Wait)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		shown, stop := context.WithTimeout(b.Context, 5*time.Second)
		defer stop()
		text, _ := chromedp.Run(shown, chromedp.Evaluate[string]("document.body.innerText"))
		b.t.Fatalf("%s: %v\nthe page is\n%s", what, err, text)
	}
	return result
}

// open opens a page and waits until it is kept up to date.
func (b *browser) open(address string) {
	b.t.Helper()
	b.do("open "+address, chromedp.Navigate(address), chromedp.WaitReady("main"))
}

// live waits until the page is kept up to date.
func (b *browser) live() {
	b.t.Helper()
	b.sees("#live", "live")
}

// sees waits until an element has a text in it.
func (b *browser) sees(selector, text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("%s has %q", selector, text), fmt.Sprintf(
		"[...document.querySelectorAll(%q)].some(e => e.innerText.includes(%q))", selector, text))
}

// until waits until an expression is true. While another page is opened, none has a value.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	var err error
	for deadline := time.Now().Add(testhost.Wait); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(b.Context, testhost.Wait)
		var met bool
		met, err = chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		cancel()
		if met && err == nil {
			return
		}
	}
	b.t.Fatalf("%s: not within %s: %v\nthe page is\n%s", what, testhost.Wait, err, value[string](b, "document.body.innerText"))
}

// value evaluates an expression.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	return run(b, expression, chromedp.Evaluate[T](expression))
}

// eval evaluates an expression for what it does.
func (b *browser) eval(expression string) {
	b.t.Helper()
	_ = run(b, expression, chromedp.Evaluate[any](expression))
}

// fresh empties the browser's cache, and weight says how many bytes it has loaded since.
func (b *browser) fresh() {
	b.t.Helper()
	b.do("empty the cache", chromium.Call(network.ClearBrowserCache, cdp.Empty{}))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes = 0
}

func (b *browser) weight() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(b.bytes)
}

// enter types the secret of a token into the form, and sends it.
func (b *browser) enter(secret string) {
	b.t.Helper()
	b.do("sign in", chromedp.SendKeys("#token", secret+"\r"))
}

// signIn signs in with the secret of a token.
func (b *browser) signIn(r *rig, secret string) {
	b.t.Helper()
	b.open(r.url("/sign-in"))
	b.enter(secret)
	b.until("the overview is open", `location.pathname == "/"`)
	b.live()
}

// picture writes what a page looks like into test/artefacts.
func (b *browser) picture(name string) {
	b.t.Helper()
	dir := filepath.Join(testbin.Root(), "test", "artefacts")
	check.NoError(b.t, os.MkdirAll(dir, 0o755))
	png := run(b, "take a picture", chromedp.FullScreenshot(100))
	check.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// widths are those of a desktop, a tablet and a phone.
var widths = []int64{1280, 820, 390}

// pictures writes what a page looks like in all widths and both colour schemes, if WIDTHS is set in the environment.
func (b *browser) pictures(name string) {
	b.t.Helper()
	if os.Getenv("WIDTHS") == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, width := range widths {
			b.size(width, 900)
			b.picture(fmt.Sprintf("%s-%d-%s", name, width, scheme))
		}
	}
	b.size(1360, 900)
}

// scheme sets the colours that the user prefers: light or dark.
func (b *browser) scheme(name string) {
	b.t.Helper()
	b.do("prefer "+name, chromium.Call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	}))
}

// size sets the size of the window.
func (b *browser) size(width, height int64) {
	b.t.Helper()
	b.do("resize", chromedp.EmulateViewport(width, height))
}
