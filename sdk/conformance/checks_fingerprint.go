package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/sdk/storage"
)

var fingerprintChecks = []*Check{
	{
		ID:    "fingerprint.follows",
		kind:  storage.Kind,
		Says:  "If its driver goes away and comes back, Fingerprint reports both, within its interval and 10 s.",
		Fix:   "Look at the driver again after every interval, and call report when something has changed.",
		after: configured,
		run:   checkFingerprint,
	},
}

func checkFingerprint(ctx context.Context, r *run, c *checking) error {
	if why := r.kind.missing(&r.cfg); why != "" {
		return skip(why)
	}
	link, err := r.link(c)
	if err != nil {
		return err
	}
	p, err := r.up(ctx, c)
	if err != nil {
		return err
	}
	reports := make(chan bool)
	streamCtx, cancel := context.WithCancel(ctx)
	ended, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		d := storage.Driver{ID: "conformance", Endpoint: "unix://" + link.path}
		opts := storage.FingerprintOptions{Interval: time.Second, ProbeTimeout: callTime}
		ended <- storage.NewClient(p.conn).Fingerprint(streamCtx, d, opts, func(f storage.Fingerprint) error {
			select {
			case reports <- f.Healthy:
			case <-streamCtx.Done():
			}
			return nil
		})
	}()
	defer func() {
		cancel()
		<-done
	}()
	reported := func(healthy bool) error {
		timer := time.NewTimer(time.Second + callTime)
		defer timer.Stop()
		for {
			select {
			case got := <-reports:
				if got == healthy {
					return nil
				}
			case err := <-ended:
				return fmt.Errorf("the stream ended: %w", orSuccess(err))
			case <-timer.C:
				return errors.New("it is not reported")
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if err := reported(true); err != nil {
		return fmt.Errorf("the driver is healthy: %w", err)
	}
	link.cut()
	if err := reported(false); err != nil {
		return fmt.Errorf("the driver is away: %w", err)
	}
	if err := link.join(); err != nil {
		return err
	}
	if err := reported(true); err != nil {
		return fmt.Errorf("the driver is back: %w", err)
	}
	return nil
}

// link is a second path to the driver, which can be taken away. A socket is a proxy, a directory a symbolic link.
type link struct {
	path string
	to   string

	listener net.Listener // nil: a symbolic link
	mu       sync.Mutex
	conns    []net.Conn
	gone     bool
	serving  sync.WaitGroup
}

// link makes a link until the check is over.
func (r *run) link(c *checking) (*link, error) {
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	l := &link{path: filepath.Join(dir, "s"), to: strings.TrimPrefix(r.cfg.Driver.Endpoint, "unix://")}
	if err := l.join(); err != nil {
		return nil, err
	}
	c.ends(l.cut)
	return l, nil
}

// join makes the path lead to the driver.
func (l *link) join() error {
	info, err := os.Stat(l.to)
	switch {
	case err != nil:
		return fmt.Errorf("look at the driver: %w", err)
	case info.IsDir():
		return os.Symlink(l.to, l.path)
	case info.Mode()&os.ModeSocket == 0:
		return skip("needs a driver on a socket or in a directory")
	}
	listener, err := net.Listen("unix", l.path)
	if err != nil {
		return fmt.Errorf("make a proxy of the driver: %w", err)
	}
	l.listener, l.gone = listener, false
	l.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			if l.gone {
				_ = conn.Close()
			}
			l.conns = append(l.conns, conn)
			l.mu.Unlock()
			l.serving.Go(func() {
				defer conn.Close()
				pass(conn, nil, l.to)
			})
		}
	})
	return nil
}

// cut takes the path away and closes its connections.
func (l *link) cut() {
	if l.listener == nil {
		_ = os.Remove(l.path)
		return
	}
	_ = l.listener.Close() // removes the socket
	l.mu.Lock()
	l.gone = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
	l.mu.Unlock()
	l.serving.Wait()
}
