// Package chromium runs a real Chromium (Debian's) for tests of pages.
package chromium

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"

	"github.com/pannier/pannier/test/lib/check"
)

// New starts a Chromium with an empty profile, and returns the context of its window. It ends with the test. Without a
// Chromium on this machine the test is skipped.
func New(t testing.TB) context.Context {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium in PATH: the pages are not looked at in a browser (Debian: apt install chromium)")
	}
	temporary, err := os.MkdirTemp("", "pb-") // its sockets' paths are bounded
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, os.RemoveAll(temporary)) })
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()), chromedp.Env("TMPDIR="+temporary), chromedp.WindowSize(1360, 900),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("no-first-run", true))
	allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	// The browser ends with the context of the first call, which must not be one with a deadline.
	_, err = chromedp.Run(ctx, chromedp.Steps())
	check.NoError(t, err)
	return ctx
}

// Call is an action that calls a command of the protocol.
func Call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, c, params)
		return chromedp.Void{}, err
	}
}
