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

// sockets are the listening sockets of all plugins. The host keeps them open while it runs, so connections wait in
// their queues while no process of the plugin accepts any.
type sockets struct {
	mu     sync.Mutex
	wanted map[string][]Socket        // by plugin
	open   map[string]map[string]open // by plugin and name
}

// open is a socket that is open, as it was configured then.
type open struct {
	as   Socket
	file *os.File
}

// Listen says which plugins are front doors, and their listening sockets. A process has those of its start: the next
// one gets what has changed.
func (s *Services) Listen(wanted map[string][]Socket) {
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	s.sockets.wanted = wanted
}

// Listeners returns the listening sockets of a plugin, with their names, for a new process. With all, those that are
// not open yet, or have changed, are opened, and those that are not configured any more are closed here. The files stay
// the services'.
func (s *Services) Listeners(ctx context.Context, plugin string, all bool) (names []string, files []*os.File,
	err error,
) {
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	wanted := s.sockets.wanted[plugin]
	for _, want := range wanted {
		has, is := s.sockets.open[plugin][want.Name]
		if all && (!is || has.as != want) {
			if has.file, err = want.replace(ctx, has); err != nil {
				return nil, nil, fmt.Errorf("listen %q on %s: %w", want.Name, want.Address, err)
			}
			s.sockets.keep(plugin, want, has.file)
		}
		if has.file != nil {
			names, files = append(names, want.Name), append(files, has.file)
		}
	}
	for name, has := range s.sockets.open[plugin] {
		if all && !slices.ContainsFunc(wanted, func(w Socket) bool { return w.Name == name }) {
			err = errors.Join(err, has.file.Close())
			delete(s.sockets.open[plugin], name)
		}
	}
	return names, files, err
}

// replace returns the socket in place of an open one, which may have no file.
func (s Socket) replace(ctx context.Context, has open) (*os.File, error) {
	if has.file != nil && has.as.Address == s.Address {
		return has.file, s.permit()
	}
	file, err := s.listen(ctx)
	if err == nil && has.file != nil {
		err = has.file.Close()
	}
	return file, err
}

// keep is called with mu held.
func (s *sockets) keep(plugin string, as Socket, file *os.File) {
	if s.open[plugin] == nil {
		s.open[plugin] = map[string]open{}
	}
	s.open[plugin][as.Name] = open{as, file}
}

// forget closes the sockets of a plugin that has no process any more.
func (s *sockets) forget(plugin string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close(plugin, true)
}

// closeAll closes all sockets here. With ended, no plugin has a process any more.
func (s *sockets) closeAll(ended bool) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for plugin := range s.open {
		err = errors.Join(err, s.close(plugin, ended))
	}
	return err
}

// close closes the sockets of a plugin here, and with remove removes their files. It is called with mu held.
func (s *sockets) close(plugin string, remove bool) error {
	var errs []error
	for _, has := range s.open[plugin] {
		errs = append(errs, has.file.Close())
		if path := has.as.path(); path != "" && remove {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	delete(s.open, plugin)
	return errors.Join(errs...)
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

// Adopt takes the listening sockets that an earlier host has opened from the process that has them. Those that it has
// not, or that are no more what the configuration says, are opened when the next process starts.
func (s *Services) Adopt(ctx context.Context, plugin string, conn grpc.ClientConnInterface) error {
	s.sockets.mu.Lock()
	none := len(s.sockets.wanted[plugin]) == 0
	s.sockets.mu.Unlock()
	if none {
		return nil
	}
	files, err := handOver(ctx, conn)
	if err != nil {
		return fmt.Errorf("take over the listening sockets: %w", err)
	}
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	var errs []error
	for name, file := range files {
		wanted := s.sockets.wanted[plugin]
		n := slices.IndexFunc(wanted, func(w Socket) bool { return w.Name == name })
		if _, is := s.sockets.open[plugin][name]; n < 0 || is || !wanted[n].is(file) {
			_ = file.Close()
			continue
		}
		s.sockets.keep(plugin, wanted[n], file)
		errs = append(errs, wanted[n].permit())
	}
	return errors.Join(errs...)
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
	type answer struct {
		files []*os.File
		err   error
	}
	received := make(chan answer, 1)
	go func() { // ends with the listener
		files, err := receive(l, nonce)
		received <- answer{files, err}
	}()
	res, err := pluginv1.NewHostServiceClient(conn).HandOver(ctx,
		&pluginv1.HandOverRequest{Socket: name, Nonce: nonce})
	if err != nil {
		_ = l.Close()
		closeAll((<-received).files)
		return nil, err
	}
	got := <-received
	if got.err != nil || len(got.files) != len(res.GetNames()) {
		closeAll(got.files)
		return nil, errors.Join(got.err, fmt.Errorf("it sent %d sockets and names %d", len(got.files), len(res.GetNames())))
	}
	files := map[string]*os.File{}
	for n, name := range res.GetNames() {
		if files[name] != nil {
			closeAll(got.files)
			return nil, fmt.Errorf("it sent the socket %q twice", name)
		}
		files[name] = got.files[n]
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
