package main

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestConformance runs the conformance kit on csi-bridge, with the bundled driver and with one that attaches.
func TestConformance(t *testing.T) {
	testbin.RequireRoot(t, "csi-bridge's conformance with drivers that mount")
	for name, start := range map[string]func(*testing.T, string) string{
		"csi-local": startLocal,
		"hostpath": func(t *testing.T, dir string) string {
			return hostpath.Start(t, dir, "-enable-attach")
		},
	} {
		t.Run(name, func(t *testing.T) {
			// t.TempDir includes the test's name, which could make the path too long for a socket's address.
			dir, err := os.MkdirTemp("", "bridge")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			endpoint := start(t, dir)
			answers(t, strings.TrimPrefix(endpoint, "unix://"))
			conformance.Storage(t, conformance.Config{
				Binary: testbin.Build(t, "plugins/csi-bridge"),
				Driver: storage.Driver{ID: name, Endpoint: endpoint},
			})
		})
	}
}

// answers waits until a process listens on a socket.
func answers(t *testing.T, socket string) {
	t.Helper()
	check.Eventually(t, "a listener on "+socket, func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}
