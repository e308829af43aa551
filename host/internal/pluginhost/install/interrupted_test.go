package install

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const (
	envSource = "PANNIER_TEST_INSTALL_SOURCE"
	envDir    = "PANNIER_TEST_INSTALL_DIR"
)

// TestMain is also a process that installs a plugin, and is killed.
func TestMain(m *testing.M) {
	if source := os.Getenv(envSource); source != "" {
		_, err := Install(context.Background(),
			Config{Source: source, Dir: os.Getenv(envDir), Arch: runtime.GOARCH, HTTP: NewHTTP()})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A process that is killed in the middle of a download, or while it tries the plugin out, leaves nothing that an agent
// would take, and no process. The next one begins anew.
func TestKilled(t *testing.T) {
	name := "fixture_v1.0.0_linux_" + runtime.GOARCH
	good := program(t, "good", "1.0.0")
	for when, source := range map[string]func(t *testing.T) (string, func(dir string) bool){
		"downloading": func(t *testing.T) (string, func(string) bool) {
			released := make(chan struct{})
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(len(good)))
				_, _ = w.Write(good[:len(good)/2])
				w.(http.Flusher).Flush()
				<-released
			}))
			t.Cleanup(s.Close)
			t.Cleanup(func() { close(released) })
			t.Setenv("SSL_CERT_FILE", certificate(t, s))
			return s.URL + "/" + name, func(dir string) bool {
				info, err := os.Stat(filepath.Join(dir, staging, "fixture_v1.0.0"))
				return err == nil && info.Size() > 0
			}
		},
		"trying": func(t *testing.T) (string, func(string) bool) {
			dir := t.TempDir()
			files{name: program(t, "hang", "1.0.0")}.write(t, dir)
			return dir, func(dir string) bool { return len(running(t, dir)) > 0 }
		},
	} {
		t.Run(when, func(t *testing.T) {
			from, begun := source(t)
			cfg := target(t, newAuthor(t))
			cfg.Signing = signing.Policy{}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), envSource+"="+from, envDir+"="+cfg.Dir)
			check.NoError(t, cmd.Start())
			check.Eventually(t, "the middle", func() bool { return begun(cfg.Dir) })
			check.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
			if left := entries(t, cfg.Dir); !slices.Equal(left, []string{staging}) {
				t.Errorf("left in the plugin directory: %q", left)
			}
			check.Eventually(t, "no process is left", func() bool { return len(running(t, cfg.Dir)) == 0 })
			cfg.Source = t.TempDir()
			files{name: good}.write(t, cfg.Source)
			if _, err := Install(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			if left := entries(t, cfg.Dir); !slices.Equal(left, []string{".fixture.source.json", "fixture_v1.0.0"}) {
				t.Errorf("in the plugin directory: %q", left)
			}
		})
	}
}

// certificate writes a server's certificate to a file.
func certificate(t *testing.T, s *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	check.NoError(t, os.WriteFile(path,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	return path
}

// running returns the processes of programs in a directory.
func running(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	check.NoError(t, err)
	for _, path := range all {
		if exe, err := os.Readlink(path); err == nil && strings.HasPrefix(exe, dir+"/") {
			found = append(found, path)
		}
	}
	return found
}

// On a full disk an installation fails, and leaves nothing.
func TestDiskFull(t *testing.T) {
	testbin.RequireRoot(t, "an installation on a full disk")
	cfg := target(t, newAuthor(t))
	cfg.Signing = signing.Policy{}
	check.NoError(t, os.Mkdir(cfg.Dir, 0o755))
	check.NoError(t, unix.Mount("tmpfs", cfg.Dir, "tmpfs", 0, "size=1m,mode=755"))
	t.Cleanup(func() { check.NoError(t, unix.Unmount(cfg.Dir, 0)) })
	cfg.Source = t.TempDir()
	files{"fixture": program(t, "good", "1.0.0")}.write(t, cfg.Source)
	_, err := Install(t.Context(), cfg)
	wantError(t, err, syscall.ENOSPC.Error())
	if left := entries(t, cfg.Dir); len(left) > 0 {
		t.Errorf("left in the plugin directory: %q", left)
	}
}
