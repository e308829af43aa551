package goplugin

import (
	"context"
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/sdk/wire"
)

// printer is a plugin's process that prints something and is silent then.
type printer struct {
	*pluginRunner
	prints []byte
	ended  chan struct{}
}

func (p *printer) Start(context.Context) error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	p.stdout = reader
	p.readHandshake()
	go func() {
		_, _ = writer.Write(p.prints)
		_ = writer.Close()
	}()
	return nil
}

func (p *printer) Wait(context.Context) error {
	<-p.ended
	return nil
}

func (p *printer) Name() string               { return "printer" }
func (p *printer) Kill(context.Context) error { return nil }

// FuzzHandshake has a plugin print any bytes as its handshake. The host refuses them, or connects to a socket in the
// directory that it gave the plugin.
func FuzzHandshake(f *testing.F) {
	dir := f.TempDir()
	good := "1|1|unix|" + dir + "/s|grpc|\n"
	for _, line := range []string{
		good, "", "\n", "||||||||\n", "1|1|tcp|127.0.0.1:22|grpc|\n", "1|1|unix|/run/docker.sock|grpc|\n",
		"1|1|unix|" + dir + "/../s|grpc|\n", "1|99999999999999999999|unix|" + dir + "/s|grpc|\n", "1|-1|unix|" + dir + "/s|netrpc|AAAA|true\n",
		"2" + good, strings.TrimSuffix(good, "\n"), good + good, strings.Repeat("1|", maxHandshake), strings.Replace(good, "grpc|", "grpc||maybe", 1),
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, prints []byte) {
		p := &printer{
			pluginRunner: newRunner(&managed.Process{Run: &managed.Run{Dir: dir}}), prints: prints, ended: make(chan struct{}),
		}
		client := goplugin.NewClient(&goplugin.ClientConfig{
			HandshakeConfig: wire.Handshake, VersionedPlugins: wire.Plugins(nil),
			AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13},
			Logger: hclog.NewNullLogger(), StartTimeout: time.Minute,
			RunnerFunc: func(hclog.Logger, *exec.Cmd, string) (runner.Runner, error) { return p, nil },
		})
		addr, err := client.Start()
		close(p.ended)
		p.reading.Wait()
		if err == nil && (addr.Network() != "unix" || filepath.Dir(addr.String()) != dir) {
			t.Errorf("%q makes the host connect to %s %s", prints, addr.Network(), addr)
		}
		if err != nil && string(prints) == good {
			t.Errorf("%q is refused: %v", prints, err)
		}
	})
}
