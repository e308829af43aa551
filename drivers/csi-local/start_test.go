package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

// runDriver runs the driver with flags that it must refuse, and returns its output.
func runDriver(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(driverBinary(t), args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v: %v, want exit code 1\n%s", args, err, out)
	}
	return string(out)
}

func TestSecondDriverIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out := runDriver(t, "-endpoint", r.sock, "-node-id", "n", "-data-dir", filepath.Join(r.dir, "other"))
	if !strings.Contains(out, "another process already answers") {
		t.Errorf("same socket: %s", out)
	}
	out = runDriver(t, "-endpoint", filepath.Join(r.dir, "other.sock"), "-node-id", "n", "-data-dir", r.data)
	if !strings.Contains(out, "in use by another driver") {
		t.Errorf("same data directory: %s", out)
	}
	if _, err := r.Probe(r.ctx, &csi.ProbeRequest{}); err != nil {
		t.Errorf("the first driver does not answer any more: %v", err)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, []byte("mine"))
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"-endpoint is missing", []string{"-node-id", "n", "-data-dir", dir}},
		{"-node-id is missing", []string{"-endpoint", "/x", "-data-dir", dir}},
		{"-data-dir is missing", []string{"-endpoint", "/x", "-node-id", "n"}},
		{"unix sockets only", []string{"-endpoint", "tcp://127.0.0.1:1", "-node-id", "n", "-data-dir", dir}},
		{"unknown argument", []string{"-endpoint", "/x", "-node-id", "n", "-data-dir", dir, "more"}},
		{"is not a socket", []string{"-endpoint", file, "-node-id", "n", "-data-dir", filepath.Join(dir, "data")}},
	} {
		var stderr bytes.Buffer
		err := run(t.Context(), tc.args, &stderr)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
		}
	}
	if readFile(t, file) != "mine" {
		t.Error("a file at the socket's path was touched")
	}
	if err := run(t.Context(), []string{"-nonsense"}, io.Discard); err == nil {
		t.Error("an unknown flag is accepted")
	}
}

func TestIdentityAndPermissions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	info, err := r.GetPluginInfo(r.ctx, &csi.GetPluginInfoRequest{})
	check.NoError(t, err)
	if info.GetName() != "local.csi.pannier.dev" || info.GetVendorVersion() == "" {
		t.Errorf("got %v", info)
	}
	node, err := r.NodeGetInfo(r.ctx, &csi.NodeGetInfoRequest{})
	check.NoError(t, err)
	if node.GetNodeId() != "node-1" {
		t.Errorf("got %v", node)
	}
	if st, err := os.Stat(r.sock); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(r.data); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("data directory: %v, %v", st.Mode(), err)
	}
	check.NoError(t, os.Remove(filepath.Join(r.data, "tmp")))
	_, err = r.Probe(r.ctx, &csi.ProbeRequest{})
	expectCode(t, err, codes.FailedPrecondition, r.data)
}
