package supervisor_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/test/lib/testbin"
)

// The plugin directory's file is overwritten in place. The running process, and a restarted one, still use the
// verified copy.
func TestOverwrittenBinaryKeepsRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	before := mustCall(t, s, "fixture", "")
	path := filepath.Join(w.cfg.PluginDir, "fixture")
	if err := os.WriteFile(path, []byte("not a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if after := mustCall(t, s, "fixture", ""); after["pid"] != before["pid"] {
		t.Error("it was replaced")
	}
	exe, err := os.Readlink("/proc/" + before["pid"] + "/exe")
	if want := w.cfg.DataDir + "/plugins/" + status(t, s, "fixture").SHA256 + "/fixture"; err != nil || exe != want {
		t.Errorf("runs from %s, want %s", exe, want)
	}
}

// The copies that served last are kept, three by default.
func TestOldCopiesAreCollected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var sums []string
	for i := range 4 {
		if i > 0 {
			appendByte(t, filepath.Join(w.cfg.PluginDir, "fixture"))
		}
		s := w.open()
		mustCall(t, s, "fixture", "")
		sums = append(sums, status(t, s, "fixture").SHA256)
		s.Close()
	}
	for i, sum := range sums {
		_, err := os.Stat(filepath.Join(w.cfg.DataDir, "plugins", sum))
		if kept := err == nil; kept != (i >= 1) {
			t.Errorf("copy %d of 4 kept: %v", i, kept)
		}
	}
}

// A client with another host's certificate, or none, cannot connect to a plugin.
func TestWrongCertificateIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	socket := socketOf(t, w)
	stranger, err := wire.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]*tls.Config{
		"another authority": stranger.ClientTLS("x"),
		"no certificate":    {},
	} {
		cfg.InsecureSkipVerify = true // the plugin is to refuse, not we
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		c := tls.Client(conn, cfg)
		c.SetDeadline(time.Now().Add(5 * time.Second))
		err = c.Handshake()
		if err == nil { // TLS 1.3: the refusal comes with the first read
			_, err = c.Read(make([]byte, 1))
		}
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
	}
}

func socketOf(t *testing.T, w *world) string {
	t.Helper()
	files, err := filepath.Glob(w.cfg.DataDir + "/plugins/run/*/plugin*")
	if err != nil || len(files) != 1 {
		t.Fatalf("sockets: %v", files)
	}
	return files[0]
}

func appendByte(t *testing.T, path string) {
	t.Helper()
	copyFile(t, path, path+".tmp")
	f, err := os.OpenFile(path+".tmp", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Write([]byte{0})
	f.Close()
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

func TestFilesThatAreNoPlugins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for file, mode := range map[string]os.FileMode{
		".hidden": 0o755, "half.tmp": 0o755, "old~": 0o755, "README": 0o644, "bad name": 0o755, "fixture.sh": 0o755,
	} {
		if err := os.WriteFile(filepath.Join(w.cfg.PluginDir, file), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(w.cfg.PluginDir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := w.open()
	mustCall(t, s, "fixture", "")
	if all := s.Status(); len(all) != 1 {
		t.Errorf("plugins: %+v", all)
	}
}

// A Unix socket's address is short, but a data directory's path may be long.
func TestDeepDataDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.DataDir = filepath.Join(w.cfg.DataDir, strings.Repeat("deep/", 30))
	s := w.open()
	mustCall(t, s, "fixture", "")
	data, err := os.ReadFile(w.cfg.DataDir + "/plugins/fixture.json")
	if err != nil {
		t.Fatal(err)
	}
	var record struct {
		Runs []struct {
			Dir string `json:"dir"`
		}
	}
	if err := json.Unmarshal(data, &record); err != nil || len(record.Runs) != 1 ||
		strings.HasPrefix(record.Runs[0].Dir, w.cfg.DataDir) {
		t.Fatalf("the socket is in %+v, %v", record, err)
	}
	_ = s.Close()
	if dir := filepath.Dir(record.Runs[0].Dir); !gone(dir) {
		t.Errorf("%s is left", dir)
	}
}

// Changes of a plugin directory are seen where the file system reports none: they are made behind a FUSE file system.
func TestDirectoryWithoutEvents(t *testing.T) {
	testbin.RequireRoot(t, "a plugin directory whose file system reports no changes")
	t.Parallel()
	w := newWorld(t)
	cfg := w.cfg
	cfg.PluginDir = filepath.Join(filepath.Dir(w.cfg.PluginDir), "mounted")
	w.must(os.Mkdir(cfg.PluginDir, 0o755))
	ready, up, err := os.Pipe()
	w.must(err)
	server := exec.Command(testbin.BuildDir(t, filepath.Join(testbin.Root(), "test/suite/fusedriver")), "mount",
		w.cfg.PluginDir, cfg.PluginDir)
	server.ExtraFiles, server.Stderr = []*os.File{up}, w.log
	w.must(server.Start())
	w.must(up.Close())
	t.Cleanup(func() {
		w.must(unix.Unmount(cfg.PluginDir, unix.MNT_DETACH))
		w.must(server.Wait())
	})
	if text, err := io.ReadAll(ready); err != nil || string(text) != "ready" {
		t.Fatalf("the file system says %q, %v", text, err)
	}
	w.must(ready.Close())
	s := supervisor.New(cfg)
	s.SetLook(20 * time.Millisecond)
	w.must(s.Open(t.Context()))
	t.Cleanup(func() { s.Close() })
	mustCall(t, s, "fixture", "")
	w.put("fixture", "good", "1.3.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
	w.settled(s)
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
