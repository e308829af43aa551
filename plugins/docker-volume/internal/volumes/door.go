package volumes

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/plugins/internal/frontdoor"
	"github.com/pannier/pannier/sdk"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/frontend"
)

// config is the config block of the plugin.
type config struct {
	Namespace string `json:"namespace" default:"docker" doc:"where volumes are that name none"`
	Driver    string `json:"driver" doc:"the CSI driver of volumes that are created without one"`
	Timeout   string `json:"timeout" default:"100s" doc:"how long a container's start waits for a volume that others have"`

	timeout time.Duration
}

// maxTimeout is below 120 s, after which dockerd gives a Mount up.
const maxTimeout = 110 * time.Second

// Validate implements sdk.Config's.
func (c *config) Validate() (err error) {
	c.timeout, err = time.ParseDuration(c.Timeout)
	if err != nil || c.timeout < time.Second || c.timeout > maxTimeout {
		return fmt.Errorf("timeout: %q is no time between 1s and %s", c.Timeout, maxTimeout)
	}
	return nil
}

// Door is the front door. Its listen block is "docker".
type Door struct{ sdk.Config[config] }

const listenName = "docker"

// Ready is called before this process takes over from another one: the API must answer.
func (d *Door) Ready(ctx context.Context, host frontend.Host) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := host.API.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: d.Get().Namespace})
	return frontdoor.Unanswered(err)
}

// Serve serves the engine's calls until ctx ends.
func (d *Door) Serve(ctx context.Context, host frontend.Host) error {
	listener, err := host.Listen(listenName)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return fmt.Errorf("read the kernel's boot id: %w", err)
	}
	own, err := processOf(os.Getpid())
	if err != nil {
		return fmt.Errorf("read this process's start time: %w", err)
	}
	s := &service{
		config: d.Get, store: &store{host.State, boot}, work: &work{api: host.API}, self: own, log: slog.Default(), ctx: ctx,
	}
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx) })
	err = frontend.ServeHTTP(ctx, engines{listener}, s.handler())
	watching.Wait()
	s.pending.Wait()
	return err
}

// engines are the connections of engines. Their local address, which net/http adds to a request's context, is the
// engine's process.
type engines struct{ net.Listener }

func (l engines) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return conn, err
	}
	return ofEngine{unixConn}, nil
}

type ofEngine struct{ *net.UnixConn }

// LocalAddr is the process, unless that is not known, such as in a PID namespace that is not ours.
func (c ofEngine) LocalAddr() net.Addr {
	pid := int32(0)
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				pid = cred.Pid
			}
		})
	}
	if p, err := processOf(int(pid)); err == nil {
		return &p
	}
	return c.UnixConn.LocalAddr()
}

// Network implements net.Addr's.
func (*process) Network() string { return "process" }

func (p *process) String() string { return fmt.Sprint(p.PID) }
