package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/frontend"
	frontendv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/frontend/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// A front door is tested with listening sockets, and without the host's API: its calls wait, as while a host is
// restarted.
var frontendKind = &kind{
	service: frontendv1.File_pannier_plugin_frontend_v1_frontend_proto.Services().ByName("FrontendService"),
	ask: func(ctx context.Context, conn grpc.ClientConnInterface, _ backend) (string, error) {
		return "", frontend.NewClient(conn).Ready(ctx)
	},
	missing: func(*Config) string { return "a front door has no backend but the host" },
}

var served = append([]string{"stop.exit"}, configured...)

var frontendChecks = []*Check{
	{
		ID:    "door.closed",
		kind:  frontend.Kind,
		Says:  "It accepts no connection before Serve.",
		Fix:   "Accept in Serve only: the process before it still serves, and this one may yet be refused.",
		after: served,
		run:   checkClosed,
	},
	{
		ID:    "door.serves",
		kind:  frontend.Kind,
		Says:  "After Serve it accepts connections on each of its listening sockets within 5 s, and a second Serve changes nothing.",
		Fix:   "Listen on each name of your listen blocks. The names that the kit gives are those of -listen (default: http).",
		after: served,
		run: func(ctx context.Context, r *run, c *checking) error {
			d, err := r.door(ctx, c)
			if err != nil {
				return err
			}
			p, err := d.up(ctx, r, c)
			if err != nil {
				return err
			}
			return errors.Join(d.serves(ctx, p), d.serves(ctx, p))
		},
	},
	{
		ID:    "door.drains",
		kind:  frontend.Kind,
		Says:  "After Drain it accepts none, and Drain returns within 10 s while a connection is idle. Connections that wait then are accepted by its next process, and Serve is refused with FailedPrecondition.",
		Fix:   "When the context of Serve ends, close the listeners, finish requests and close idle connections (frontend.ServeHTTP does this). Use the host's listeners: closing them closes copies.",
		after: append([]string{"door.serves"}, served...),
		run:   checkDrains,
	},
}

const (
	// acceptTime is how soon a connection is accepted.
	acceptTime = 5 * time.Second
	// restTime is how long a connection that must wait is seen to wait.
	restTime = 300 * time.Millisecond
)

// door has the listening sockets of a front door's processes.
type door struct {
	c     *checking
	names []string
	files []*os.File
	addrs []string
}

// door opens the sockets of a check.
func (r *run) door(ctx context.Context, c *checking) (*door, error) {
	d := &door{c: c, names: r.cfg.Listen}
	for range d.names {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("open a listening socket: %w", err)
		}
		file, err := wire.ListenerFile(l)
		if err != nil {
			return nil, fmt.Errorf("open a listening socket: %w", err)
		}
		c.ends(func() { _ = file.Close() })
		d.files, d.addrs = append(d.files, file), append(d.addrs, l.Addr().String())
	}
	return d, nil
}

// up starts a process with the sockets and configures it.
func (d *door) up(ctx context.Context, r *run, c *checking) (*process, error) {
	p, err := r.startWith(c, []string{wire.EnvListeners + "=" + strings.Join(d.names, ",")}, d.files)
	if err != nil {
		return nil, err
	}
	if err := p.configure(ctx, r.cfg.Config); err != nil {
		return nil, err
	}
	return p, nil
}

// connect opens a connection to each socket, which ends with the check.
func (d *door) connect(ctx context.Context) error {
	for _, addr := range d.addrs {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		d.c.ends(func() { _ = conn.Close() })
	}
	return nil
}

// waiting returns the number of connections that nobody has accepted, by socket (tcp_info of a listening socket,
// tcpi_unacked).
func (d *door) waiting() (n []uint32, err error) {
	for _, f := range d.files {
		info, err := unix.GetsockoptTCPInfo(int(f.Fd()), unix.SOL_TCP, unix.TCP_INFO)
		if err != nil {
			return nil, fmt.Errorf("read the queue of a listening socket: %w", err)
		}
		n = append(n, info.Unacked)
	}
	return n, nil
}

// accepted waits until all connections have been accepted.
func (d *door) accepted() error {
	for end := time.Now().Add(acceptTime); ; time.Sleep(time.Millisecond) {
		n, err := d.waiting()
		if err != nil {
			return err
		}
		left := ""
		for i, name := range d.names {
			if n[i] > 0 {
				left = name
			}
		}
		switch {
		case left == "":
			return nil
		case time.Now().After(end):
			return fmt.Errorf("a connection to the socket %q is not accepted after %v", left, acceptTime)
		}
	}
}

// wait connects to each socket, and fails if a connection is accepted.
func (d *door) wait(ctx context.Context) error {
	if err := d.connect(ctx); err != nil {
		return err
	}
	time.Sleep(restTime)
	n, err := d.waiting()
	for i, name := range d.names {
		if err == nil && n[i] == 0 {
			err = fmt.Errorf("a connection to the socket %q is accepted", name)
		}
	}
	return err
}

// serves makes a process serve, and checks that it accepts connections.
func (d *door) serves(ctx context.Context, p *process) error {
	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err := frontend.NewClient(p.conn).Serve(call); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if err := d.connect(ctx); err != nil {
		return err
	}
	if err := d.accepted(); err != nil {
		return fmt.Errorf("%w%s", err, p.lastWords())
	}
	return nil
}

func checkClosed(ctx context.Context, r *run, c *checking) error {
	d, err := r.door(ctx, c)
	if err != nil {
		return err
	}
	p, err := d.up(ctx, r, c)
	if err != nil {
		return err
	}
	r.kind.asked(ctx, p.conn, r.asked()) // whatever it says without an API
	return d.wait(ctx)
}

func checkDrains(ctx context.Context, r *run, c *checking) error {
	d, err := r.door(ctx, c)
	if err != nil {
		return err
	}
	old, err := d.up(ctx, r, c)
	if err != nil {
		return err
	}
	if err := d.serves(ctx, old); err != nil { // its connection stays open, and idle
		return err
	}
	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err := frontend.NewClient(old.conn).Drain(call); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if err := d.wait(ctx); err != nil {
		return fmt.Errorf("after Drain: %w", err)
	}
	if err := frontend.NewClient(old.conn).Serve(call); status.Code(err) != codes.FailedPrecondition {
		return fmt.Errorf("serve after Drain gives %w, not FailedPrecondition", orSuccess(err))
	}
	next, err := d.up(ctx, r, c)
	if err != nil {
		return err
	}
	if err := d.serves(ctx, next); err != nil {
		return fmt.Errorf("its next process: %w", err)
	}
	return nil
}
