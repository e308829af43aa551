package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

// The plugin is replaced under load, by good versions, a broken one and one that is only half there. No call fails.
func TestSwapUnderLoad(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "hotswap") // its path is short enough for a socket
	check.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	build := func(pkg, out, version string) string {
		t.Helper()
		out = filepath.Join(dir, out)
		cmd := exec.Command("go", "build", "-o", out, "-ldflags", "-X main.version="+version, pkg)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		return out
	}
	host := build(".", "host", "")
	versions := map[string]string{}
	for _, version := range []string{"1.0", "2.0", "3.0"} {
		versions[version] = build("./greeter", "greeter-"+version, version)
	}
	plugin, data := filepath.Join(dir, "plugins", "greeter"), filepath.Join(dir, "data")
	check.NoError(t, os.MkdirAll(filepath.Dir(plugin), 0o755)) //nolint:gosec // programs are found there
	check.NoError(t, os.MkdirAll(data, 0o711))                 //nolint:gosec // as above
	install := func(from string, part float64) {
		t.Helper()
		text, err := os.ReadFile(from)
		check.NoError(t, err)
		check.NoError(t, os.WriteFile(plugin+".new", text[:int(float64(len(text))*part)], 0o755)) //nolint:gosec // a program
		check.NoError(t, os.Rename(plugin+".new", plugin))
	}
	install(versions["1.0"], 1)

	cmd := exec.Command(host, plugin, data)
	stdin, err := cmd.StdinPipe()
	check.NoError(t, err)
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	cmd.Stderr = os.Stderr
	check.NoError(t, cmd.Start())
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	failed := 0
	await := func(want string) {
		t.Helper()
		late := time.After(time.Minute)
		for {
			select {
			case line := <-lines:
				if strings.HasPrefix(line, "failed") {
					t.Error(line)
					failed++
				}
				if strings.HasPrefix(line, want) {
					return
				}
			case <-late:
				t.Fatalf("the host does not say %q", want)
			}
		}
	}
	await("version 1.0 greets you")
	install(versions["2.0"], 1)
	await("version 2.0 greets you")
	install("/bin/false", 1)
	time.Sleep(500 * time.Millisecond)
	install(versions["3.0"], 0.5)
	time.Sleep(500 * time.Millisecond)
	install(versions["3.0"], 1)
	await("version 3.0 greets you")
	check.NoError(t, stdin.Close())
	await("the end: <nil>")
	check.NoError(t, cmd.Wait())
	if failed > 0 {
		t.Errorf("%d calls failed", failed)
	}
	record, err := os.ReadFile(filepath.Join(data, "record.json"))
	check.NoError(t, err)
	if !strings.Contains(string(record), "exit status 1") {
		t.Errorf("what was refused is not recorded: %s", record)
	}
}
