// Package testplugin runs one of this module's plugins as a host does, but without a host: the built program, with
// its handshake and TLS. It is for tests only.
package testplugin

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/test/lib/testbin"
)

// Plugin is a running plugin process.
type Plugin struct {
	// Conn is the connection to it.
	Conn    *grpc.ClientConn
	Process *os.Process
	Log     *Log
}

// Start runs a plugin of plugins/ by its name, with additional environment variables, until the test ends.
func Start(t testing.TB, name string, env ...string) *Plugin {
	t.Helper()
	authority, err := wire.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := authority.Issue(name)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tls")
	if err := os.WriteFile(file, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testbin.Build(t, "plugins/"+name))
	cmd.Env = append(append(os.Environ(), wire.EnvTLSBundle+"="+file, wire.EnvLogLevel+"=trace"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &Log{}
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Cmd:              cmd,
		TLSConfig:        authority.ClientTLS(name),
		Stderr:           log,
		Logger:           hclog.NewNullLogger(),
	})
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	if err != nil {
		t.Fatalf("start the plugin: %v\n%s", err, log)
	}
	conn, err := protocol.Dispense(wire.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	return &Plugin{Conn: conn.(*grpc.ClientConn), Process: cmd.Process, Log: log}
}

// Log collects what a process writes, and can be read meanwhile.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Await waits until a text was written, because a process's output arrives a moment later.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	for late := time.Now().Add(time.Minute); !strings.Contains(l.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("the process did not write %q:\n%s", text, l)
		}
	}
}
