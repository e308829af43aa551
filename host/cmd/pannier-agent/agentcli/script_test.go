package agentcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/host/internal/config"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/clitest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestMain also runs this binary as pannier-agent, with an agent that only prints its configuration.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pannier-agent": func() {
		a := cli.New(cli.Options{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Version: "1.2.3"})
		os.Exit(a.Run(command(a, printAgent, nil)))
	}})
}

func printAgent(_ context.Context, cfg *config.Agent, version string, logs io.Writer) error {
	fmt.Fprintf(logs, "agent %s name=%s data=%s socket=%s port=%d level=%s dev=%v drivers=%d\n",
		version, cfg.Name, cfg.DataDir, cfg.Socket, cfg.HTTPPort, cfg.LogLevel, cfg.Dev, len(cfg.Drivers))
	if _, err := os.Stat(cfg.DataDir); cfg.Dev && err != nil {
		return err
	}
	return nil
}

func TestReference(t *testing.T) {
	root := command(cli.New(cli.Options{}), nil, nil)
	clitest.Reference(t, root)
	clitest.Pages(t, root)
}

// TestScripts runs testdata/*.txt with an agent that can be stopped. The script's command start starts it again.
func TestScripts(t *testing.T) {
	plugin := testbin.BuildDir(t, "../../../../test/lib/testdata/kitplugin")
	type key struct{}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			s := &stoppable{socket: filepath.Join(env.WorkDir, "agent.sock")}
			env.Values[key{}] = s
			env.Defer(s.close)
			env.Setenv("PANNIER_ADDR", "unix://"+s.socket)
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("PLUGIN", plugin)
			// With -race, every command would sleep for a second before it exits.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return s.start()
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": clitest.Code,
			"start": func(ts *testscript.TestScript, _ bool, _ []string) {
				s := ts.Value(key{}).(*stoppable)
				ts.Check(os.Remove(s.socket))
				ts.Check(s.start())
			},
		},
	})
}

// stoppable is an agent in another pid namespace, which ends a while after it was stopped, and leaves its socket.
type stoppable struct {
	hostv1connect.UnimplementedAgentServiceHandler
	hostv1connect.UnimplementedMemberServiceHandler
	hostv1connect.UnimplementedPluginServiceHandler
	socket  string
	server  *http.Server
	served  sync.WaitGroup
	secured atomic.Bool // by its upgrade
	asked   atomic.Int32
}

// SwapPlugin has another plugin_dir at first; then the binary serves, cannot take over, or another one goes on.
func (s *stoppable) SwapPlugin(_ context.Context, r *hostv1.SwapPluginRequest) (*hostv1.SwapPluginResponse, error) {
	p := &hostv1.Plugin{Name: r.GetName(), Sha256: r.GetSha256(), Version: "1.2.3", Generation: 7, Pid: 40}
	switch s.asked.Add(1) {
	case 1:
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such plugin"))
	case 2:
		return &hostv1.SwapPluginResponse{Plugin: p}, nil
	case 3:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the disk is on fire"))
	}
	p.Sha256, p.Version = "", "2.0.0"
	return &hostv1.SwapPluginResponse{Plugin: p}, nil
}

func (s *stoppable) start() error {
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	mux := http.NewServeMux()
	mux.Handle(hostv1connect.NewAgentServiceHandler(s))
	mux.Handle(hostv1connect.NewMemberServiceHandler(s))
	mux.Handle(hostv1connect.NewPluginServiceHandler(s))
	server := &http.Server{Handler: mux}
	s.server = server
	s.served.Go(func() { _ = server.Serve(l) })
	return nil
}

func (s *stoppable) close() {
	_ = s.server.Close()
	s.served.Wait()
}

func (s *stoppable) Status(context.Context, *hostv1.StatusRequest) (*hostv1.StatusResponse, error) {
	if s.secured.Load() {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("this call has no token"))
	}
	return &hostv1.StatusResponse{}, nil
}

// Upgrade replaces the program by one whose configuration has ACLs.
func (s *stoppable) Upgrade(context.Context, *hostv1.UpgradeRequest) (*hostv1.UpgradeResponse, error) {
	s.secured.Store(true)
	return &hostv1.UpgradeResponse{Pid: 40, From: "1.2.2", To: "1.2.3", Attempt: "1"}, nil
}

func (s *stoppable) Stop(_ context.Context, r *hostv1.StopRequest) (*hostv1.StopResponse, error) {
	server := s.server
	s.served.Go(func() {
		time.Sleep(300 * time.Millisecond)
		_ = server.Close()
	})
	return &hostv1.StopResponse{Pid: 1 << 30, Workloads: 2, PluginsStop: r.GetPlugins()}, nil
}

func (s *stoppable) Leave(context.Context, *hostv1.LeaveRequest) (*hostv1.LeaveResponse, error) {
	return &hostv1.LeaveResponse{Pid: 40}, nil
}
