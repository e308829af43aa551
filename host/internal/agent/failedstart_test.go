package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/test/lib/testhost"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "failing-start" {
		fmt.Println(failingStart(os.Args[2], os.Args[3], os.Args[4]))
		return
	}
	os.Exit(m.Run())
}

// Whatever fails in a start, and whenever, what outlived the agent before stays for the next one: plugins, drivers and
// the sockets of front doors, also if a start that succeeds would replace them.
func TestFailedStartLeavesWhatItFound(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page")
	h := testhost.New(t, testhost.LocalDriver(t)+fmt.Sprintf(
		"plugin \"web\" {\n  listen \"http\" {\n    address = %q\n  }\n  api {\n    policy = \"web\"\n  }\n}\n", "unix://"+page), "web")
	h.Start()
	h.Eventually("the front door listens", func() error { return connect(t, page) })
	h.Stop() // the plugins and the driver go on
	before := h.Processes()
	if len(before) != 3 {
		t.Fatalf("an agent that was stopped leaves processes %v", before)
	}
	text, err := os.ReadFile(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(string(text), `"unix://`+page, `"unix://`+page+"2", 1)
	other = strings.Replace(other, `"-data-dir"`, `"-topology", "a=b", "-data-dir"`, 1)
	changed := h.Write("changed.hcl", other+"plugin \"csi-bridge\" {\n  args = [\"-x\"]\n}\n")
	for n, step := range (&standalone{}).steps() {
		for _, how := range [][]string{{h.Config, "at once"}, {h.Config, "soon"}, {h.Config, "up"}, {changed, "up"}} {
			what := fmt.Sprintf("a start with %s that fails (%s) before step %q", filepath.Base(how[0]), how[1], step.name)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			cmd := exec.CommandContext(ctx, os.Args[0], "failing-start", how[0], strconv.Itoa(n), how[1]) //nolint:gosec // this test
			cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGQUIT) }
			out, err := cmd.CombinedOutput()
			cancel()
			if text := string(out); err != nil || !strings.HasSuffix(text, errBroken.Error()+"\n") {
				t.Fatalf("%s: %v: %s", what, err, text)
			}
			if after := h.Processes(); !slices.Equal(before, after) {
				t.Fatalf("%s found processes %v and left %v: %s", what, before, after, out)
			}
			if err := connect(t, page); err != nil {
				t.Fatalf("the socket after %s: %v", what, err)
			}
		}
	}
	h.Start()
	after := slices.DeleteFunc(h.Processes(), func(pid int) bool { return pid == h.PID() })
	if !slices.Equal(before, after) {
		t.Errorf("a start that succeeds finds processes %v and has %v", before, after)
	}
}

func connect(t *testing.T, path string) error {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
	if err == nil {
		err = conn.Close()
	}
	return err
}

var errBroken = errors.New("broken")

// failingStart starts an agent of which the step after the first n ones fails.
func failingStart(file, n, how string) error {
	cfg, err := config.Load(config.Source{Paths: []string{file}})
	if err != nil {
		return err
	}
	first, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a := newAgent(cfg, "0.0.0", os.Stdout, nil, nil)
	broken := step{"broken", func(ctx context.Context) error {
		switch {
		case how == "soon": // not to wait for something: to be anywhere in a reattachment
			time.Sleep(time.Duration(first) * time.Millisecond)
		case how == "up" && a.plugins != nil:
			err := a.plugins.Await(ctx, func(all []supervisor.Status) bool {
				return !slices.ContainsFunc(all, func(s supervisor.Status) bool { return s.State != supervisor.Running })
			})
			if err != nil {
				return err
			}
		}
		return errBroken
	}}
	err = a.open(ctx, append(a.role()[:first:first], broken))
	if closed := a.close(ctx); closed != nil {
		return closed
	}
	return err
}
