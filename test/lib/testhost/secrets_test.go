package testhost

import (
	"encoding/base64"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestLeaks puts a secret into each place and looks for it.
func TestLeaks(t *testing.T) {
	const secret = "4f7c0e9a-0d1b-4a53-9a42-6f2b8c1d7e55"
	h := New(t, "")
	if err := os.MkdirAll(h.SecretsDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	h.Write("data/secrets/closed", secret)
	h.Write("harmless", strings.ToUpper(secret))
	clean := func() {
		t.Helper()
		if found := h.Leaks([]string{secret}, "nothing"); len(found) > 0 {
			t.Fatalf("found in %q before it was put there", found)
		}
	}
	clean()
	in64 := func(before string) string {
		return base64.StdEncoding.EncodeToString([]byte(before + secret + "after"))
	}
	for what, text := range map[string]string{
		"the secret":             "x" + secret + "x",
		"in base64":              in64(""),
		"in base64, 1 behind":    in64("a"),
		"in base64, 2 behind":    in64("ab"),
		"in base64, at its end":  base64.StdEncoding.EncodeToString([]byte("a" + secret)),
		"a JWT that is nobody's": "Bearer eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJwYW5uaWVyIn0.c2lnbmF0dXJlLW9m\n",
	} {
		h.Write("data/file", text)
		if found := h.Leaks([]string{secret}); len(found) != 1 || found[0] != h.Path("data/file") {
			t.Errorf("%s in a file: found in %q", what, found)
		}
		if err := os.Remove(h.Path("data/file")); err != nil {
			t.Fatal(err)
		}
		if found := h.Leaks([]string{secret}, text); len(found) != 1 {
			t.Errorf("%s in what is shown: found in %q", what, found)
		}
	}
	h.Write("data/secrets/open", secret)
	if err := os.Chmod(h.Path("data/secrets/open"), 0o440); err != nil {
		t.Fatal(err)
	}
	if found := h.Leaks([]string{secret}); len(found) != 1 || found[0] != h.Path("data/secrets/open") {
		t.Errorf("in a file that others may read: found in %q", found)
	}
	if err := os.Remove(h.Path("data/secrets/open")); err != nil {
		t.Fatal(err)
	}
	clean()
	for place, start := range map[string]func(cmd *exec.Cmd){
		"cmdline": func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-token", secret) },
		"environ": func(cmd *exec.Cmd) { cmd.Env = append(os.Environ(), "TOKEN="+secret) },
	} {
		cmd := exec.Command("sh", "-c", "read never", h.Path("program"))
		stdin, err := cmd.StdinPipe() // the process runs until this is closed
		if err != nil {
			t.Fatal(err)
		}
		start(cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if found := h.Leaks([]string{secret}); len(found) != 1 || !strings.HasPrefix(found[0], place+" of process ") {
			t.Errorf("in a process: found in %q, want its %s", found, place)
		}
		_ = stdin.Close()
		_ = cmd.Wait()
	}
	clean()
}
