package hostservices

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/internal/unixsocket"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// Socket is a listening socket that the host opens for a plugin.
type Socket struct {
	Name string
	// Address is unix:// and an absolute path, or an IP address (or nothing, for all) and a port.
	Address string
	// Mode, Owner and Group of a unix socket's file. An empty owner or group is the agent's.
	Mode         fs.FileMode
	Owner, Group string
}

// path is the path of a unix socket; empty: it is none.
func (s Socket) path() string {
	path, ok := strings.CutPrefix(s.Address, "unix://")
	if !ok {
		return ""
	}
	return path
}

// permit gives a unix socket's file its owner and mode.
func (s Socket) permit() error {
	if s.path() == "" {
		return nil
	}
	uid, gid, err := process.IDs(s.Owner, s.Group)
	if err != nil {
		return err
	}
	return trusted.Permit(s.path(), fs.ModeSocket, s.Mode, uid, gid)
}

// ErrListen means that a listening socket cannot be opened.
var ErrListen = errors.New("listen")

// sockets are the listening sockets of all plugins, by plugin. The host keeps them open while it runs, so connections
// wait in their queues while no process of the plugin accepts any.
type sockets struct {
	mu   sync.Mutex
	open map[string][]*listening
}

// listening is a socket that is open, until none of its holders is left: the processes that have it, by their tokens,
// and the plugin itself (proven), which has those of the process that served last.
type listening struct {
	Socket
	file    *os.File
	holders map[string]bool
	// activated: the service manager listens too, and the socket's file is its own.
	activated bool
}

// proven is the holder of the sockets of the process that serves, or served last.
const proven = ""

// Listeners returns the listening sockets of a new process of a plugin, with their names: those that the plugin has
// open already and, with open, new ones. They are the process's until Release; the files stay the services'. Error:
// ErrListen, and nothing has changed.
func (s *Services) Listeners(ctx context.Context, plugin, token string, wanted []Socket, open bool) (names []string,
	files []*os.File, err error,
) {
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	for _, want := range wanted {
		all := s.sockets.open[plugin]
		n := slices.IndexFunc(all, func(l *listening) bool {
			return !l.holders[token] && (l.Address == want.Address || want.is(l.file))
		})
		if n < 0 && !open {
			continue
		}
		_, _, err := process.IDs(want.Owner, want.Group)
		if err == nil && n < 0 {
			l := &listening{Socket: want, holders: map[string]bool{}}
			err = s.listen(ctx, l)
			n, all = len(all), append(all, l)
		}
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%w %q on %s: %w", ErrListen, want.Name, want.Address, err),
				s.sockets.release(plugin, token))
		}
		s.sockets.open[plugin] = all
		all[n].holders[token] = true
		names, files = append(names, want.Name), append(files, all[n].file)
	}
	return names, files, nil
}

// Prove makes the sockets of a process those of the plugin, and gives them the owners and modes of its configuration:
// from now on it serves. Those that it has not are closed when the processes have ended that have them.
func (s *Services) Prove(plugin, token string, wanted []Socket) error {
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	for _, l := range s.sockets.open[plugin] {
		n := slices.IndexFunc(wanted, func(w Socket) bool { return w.Address == l.Address || w.is(l.file) })
		if n < 0 || !l.holders[token] || l.Socket == wanted[n] {
			continue
		}
		if err := wanted[n].permit(); err != nil {
			return fmt.Errorf("%w %q on %s: %w", ErrListen, wanted[n].Name, wanted[n].Address, err)
		}
		l.Socket = wanted[n]
	}
	if err := s.sockets.release(plugin, proven); err != nil {
		s.log.Warn("a listening socket was not closed", "plugin", plugin, "error", err)
	}
	for _, l := range s.sockets.open[plugin] {
		if l.holders[token] {
			l.holders[proven] = true
		}
	}
	return nil
}

// Release closes the sockets that only a process had, which has ended. Without a token they are those of a plugin of
// which no process is started any more.
func (s *Services) Release(plugin, token string) error {
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	return s.sockets.release(plugin, token)
}

// release is called with mu held.
func (s *sockets) release(plugin, token string) error {
	var errs []error
	s.open[plugin] = slices.DeleteFunc(s.open[plugin], func(l *listening) bool {
		if delete(l.holders, token); len(l.holders) > 0 {
			return false
		}
		if l.path() != "" && l.is(l.file) && !l.activated {
			errs = append(errs, os.Remove(l.path()))
		}
		errs = append(errs, l.file.Close())
		return true
	})
	return errors.Join(errs...)
}

// close closes all sockets here. The processes that have them keep them.
func (s *sockets) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, all := range s.open {
		for _, l := range all {
			errs = append(errs, l.file.Close())
		}
	}
	clear(s.open)
	return errors.Join(errs...)
}

// listen takes the socket of the service manager, or opens one.
func (s *Services) listen(ctx context.Context, l *listening) (err error) {
	l.file, err = s.cfg.Door(l.path())
	if l.activated = l.file != nil; l.activated || err != nil {
		return errors.Join(err, l.permit())
	}
	l.file, err = l.listen(ctx)
	return err
}

// listen opens the socket. Its file gets its owner and mode before anyone else can use it.
func (s Socket) listen(ctx context.Context) (*os.File, error) {
	path := s.path()
	if path == "" {
		var cfg net.ListenConfig
		l, err := cfg.Listen(ctx, "tcp", s.Address)
		if err != nil {
			return nil, err
		}
		return wire.ListenerFile(l)
	}
	if err := trusted.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := unixsocket.Clear(ctx, path); err != nil {
		return nil, err
	}
	// The file's first mode is the socket's own (unix(7)): nobody else can connect before it has its owner.
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := cfg.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err = s.permit(); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(path))
	}
	return wire.ListenerFile(l)
}

// handOverTimeout bounds the hand-over of a process's sockets.
const handOverTimeout = 3 * time.Second

// Adopt takes the listening sockets that an earlier host has opened from the process that serves and has them, as far
// as they are what wanted says.
func (s *Services) Adopt(ctx context.Context, plugin, token string, wanted []Socket, conn grpc.ClientConnInterface,
) error {
	if len(wanted) == 0 {
		return nil
	}
	files, err := handOver(ctx, conn)
	if err != nil {
		return fmt.Errorf("take over the listening sockets: %w", err)
	}
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	for name, file := range files {
		n := slices.IndexFunc(wanted, func(w Socket) bool { return w.Name == name && w.is(file) })
		if n < 0 {
			_ = file.Close()
			continue
		}
		of, err := s.cfg.Door(wanted[n].path())
		if err != nil {
			return err
		}
		_ = of.Close() // fails if there is none
		s.sockets.open[plugin] = append(s.sockets.open[plugin],
			&listening{wanted[n], file, map[string]bool{token: true, proven: true}, of != nil})
	}
	return nil
}

// handOver asks a process for its listening sockets. The abstract socket that they come through can be found by any
// process, so what comes must begin with the nonce that only this plugin was told.
func handOver(ctx context.Context, conn grpc.ClientConnInterface) (map[string]*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	name, nonce := "pannier-"+rand.Text(), []byte(rand.Text())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + name})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var got []*os.File
	var failed error
	var receiving sync.WaitGroup
	receiving.Go(func() { got, failed = receive(l, nonce) }) // ends with the listener
	res, err := pluginv1.NewHostServiceClient(conn).HandOver(ctx,
		&pluginv1.HandOverRequest{Socket: name, Nonce: nonce})
	if err != nil {
		_ = l.Close()
	}
	receiving.Wait()
	if err == nil && (failed != nil || len(got) != len(res.GetNames())) {
		err = errors.Join(failed, fmt.Errorf("it sent %d sockets and names %d", len(got), len(res.GetNames())))
	}
	files := map[string]*os.File{}
	for n, name := range res.GetNames() {
		if err == nil && files[name] != nil {
			err = fmt.Errorf("it sent the socket %q twice", name)
		}
		if err == nil {
			files[name] = got[n]
		}
	}
	if err != nil {
		closeAll(got)
		return nil, err
	}
	return files, nil
}

// receive returns the descriptors of the first connection that sends the nonce.
func receive(l *net.UnixListener, nonce []byte) ([]*os.File, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		files, ok := receiveFrom(conn, nonce)
		_ = conn.Close()
		if ok {
			return files, nil
		}
		closeAll(files)
	}
}

// strangerTimeout bounds how long somebody else can keep the plugin from handing over.
const strangerTimeout = time.Second

func receiveFrom(conn *net.UnixConn, nonce []byte) (files []*os.File, ok bool) {
	_ = conn.SetReadDeadline(time.Now().Add(strangerTimeout))
	data, rights := make([]byte, len(nonce)), make([]byte, unix.CmsgSpace(4*wire.MaxListeners))
	n, oobn, _, _, err := conn.ReadMsgUnix(data, rights)
	if err != nil {
		return nil, false
	}
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil {
		return nil, false
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "listener"))
		}
	}
	return files, bytes.Equal(data[:n], nonce)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// is reports whether a descriptor is this listening socket.
func (s Socket) is(file *os.File) bool {
	fd := int(file.Fd())
	if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens != 1 {
		return false
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	var bound netip.AddrPort
	switch a := addr.(type) {
	case *unix.SockaddrUnix:
		info, err := os.Lstat(s.path())
		return err == nil && a.Name == s.path() && info.Mode().Type() == fs.ModeSocket
	case *unix.SockaddrInet4:
		bound = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		bound = netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	want, err := netip.ParseAddrPort(s.Address)
	if err != nil { // all addresses
		_, port, err := net.SplitHostPort(s.Address)
		return err == nil && bound.Addr().IsUnspecified() && fmt.Sprint(bound.Port()) == port
	}
	return bound == want
}
