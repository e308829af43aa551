// Package credentials gives systemd units the secrets of their workloads: LoadCredential=NAME:SOCKET (systemd.exec(5)).
// systemd connects from an abstract address that names the unit and the credential, and reads until the end.
//
// What must stay true: a secret goes to a process of root only, in the control group of a unit that the workload's spec
// names. The address alone proves nothing: every process can take any abstract one that is free.
package credentials

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/internal/unixsocket"
)

const (
	// maxCredentials is what systemd takes for all credentials of a unit, in bytes (https://systemd.io/CREDENTIALS).
	maxCredentials = 1 << 20
	// writeTimeout bounds an answer.
	writeTimeout = 10 * time.Second
	// acceptPause is the pause after a connection could not be accepted, as without a free descriptor.
	acceptPause = 100 * time.Millisecond
)

// Config is what a Server needs.
type Config struct {
	Path    string // of the socket
	Sockets *handover.Sockets
	// Find returns the secret that a unit may load under a name, and whose it is. The error names what to do.
	Find func(unit, name string) ([]byte, claim.WorkloadRef, error)
	Log  hclog.Logger
}

// Server answers at the socket.
type Server struct {
	cfg      Config
	listener net.Listener
	running  sync.WaitGroup
}

// Serve begins to answer, until Close.
func Serve(ctx context.Context, cfg Config) (*Server, error) {
	l, err := cfg.Sockets.Listen("credentials", cfg.Path, false, func() (net.Listener, error) {
		if err := unixsocket.Clear(ctx, cfg.Path); err != nil {
			return nil, err
		}
		var listen net.ListenConfig
		return listen.Listen(ctx, "unix", cfg.Path)
	})
	if err != nil {
		return nil, fmt.Errorf("listen for units that load credentials: %w", err)
	}
	if err := trusted.Permit(cfg.Path, fs.ModeSocket, 0o600, -1, -1); err != nil {
		return nil, errors.Join(fmt.Errorf("set who may load credentials: %w", err), l.Close())
	}
	s := &Server{cfg: cfg, listener: l}
	s.running.Go(s.accept)
	return s, nil
}

// Close ends after the last answer that was begun.
func (s *Server) Close() error {
	err := s.listener.Close()
	s.running.Wait()
	return err
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			s.cfg.Log.Error("a unit that loads a credential cannot be answered; this is retried", "error", err)
			time.Sleep(acceptPause)
		default:
			s.running.Go(func() { s.answer(conn) })
		}
	}
}

// answer sends a secret, or nothing that is one.
func (s *Server) answer(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(writeTimeout)) // fails only when it is closed
	r, err := identify(conn)
	if err != nil {
		s.cfg.Log.Warn("a process that asks for a credential gets nothing", "pid", r.pid, "uid", r.uid, "unit", r.unit,
			"credential", r.name, "error", err)
		return
	}
	secret, of, err := s.cfg.Find(r.unit, r.name)
	if err == nil && len(secret) > maxCredentials {
		err = fmt.Errorf("the secret has %d bytes, and systemd takes %d: read it from its file", len(secret), maxCredentials)
	}
	if err != nil {
		s.cfg.Log.Warn("a unit gets no credential, and does not start", "unit", r.unit, "credential", r.name, "error", err)
		secret = nothing
	}
	if _, werr := conn.Write(secret); werr != nil && err == nil {
		s.cfg.Log.Warn("a credential was not read to its end", "unit", r.unit, "credential", r.name, "error", werr)
	} else if err == nil {
		s.cfg.Log.Info("a unit has loaded a credential", "unit", r.unit, "credential", r.name, "workload", of)
	}
}

// nothing is no credential: to systemd an empty answer is an empty credential. Of one that is too long it says so, and
// the unit fails.
var nothing = make([]byte, maxCredentials+1)

// Asks reports whether a connection asks for a credential, and not for the API.
func Asks(conn net.Conn) bool {
	address, unix := conn.RemoteAddr().(*net.UnixAddr)
	if !unix {
		return false
	}
	_, _, named := parse(address.Name)
	return named
}

// Refuse answers a unit that it gets no credential.
func Refuse(conn net.Conn) error {
	_, err := conn.Write(nothing)
	return err
}

// request is what a process wants to load.
type request struct {
	pid        int
	uid        uint32
	unit, name string
}

// identify returns what a connection is for. It fails unless systemd makes it, for the unit that it names.
func identify(conn net.Conn) (r request, err error) {
	address, named := conn.RemoteAddr().(*net.UnixAddr)
	socket, ok := conn.(syscall.Conn)
	if !named || !ok {
		return r, fmt.Errorf("a %T is no connection of a unix socket", conn)
	}
	r.unit, r.name, named = parse(address.Name)
	peer, err := process.AtSocket(socket)
	if err != nil {
		return r, err
	}
	r.pid, r.uid = int(peer.Pid), peer.Uid
	switch groups := groupsOf(r.pid); {
	case !peer.Process.Lives(): // after the look, or the groups could be a later process's
		return r, errors.New("it has ended, or is in a PID namespace that the agent does not see")
	case !named:
		return r, errors.New("its address names no unit: only systemd asks here, for units with LoadCredential=")
	case r.uid != 0:
		return r, errors.New("it is not root, and so it is not systemd")
	case !slices.ContainsFunc(groups, func(group string) bool { return inUnit(group, r.unit) }):
		return r, fmt.Errorf("it is in the control groups %q, which are not the unit's: only systemd asks for a unit", groups)
	}
	return r, nil
}

// groupsOf returns the control groups in which systemd has put a process: it uses the hierarchy of cgroup v2, one of
// its own, or both (cgroups(7)).
func groupsOf(pid int) (groups []string) {
	raw, _ := os.ReadFile(procfs.Dir(pid) + "/cgroup") // else it has ended
	for line := range strings.Lines(string(raw)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 && (fields[0] == "0" || fields[1] == "name=systemd") {
			groups = append(groups, fields[2])
		}
	}
	return groups
}

// inUnit reports whether a control group is a unit's own or below it, and no container's, which may have a systemd with
// units of its own.
func inUnit(group, unit string) bool {
	for part := range strings.SplitSeq(strings.TrimPrefix(group, "/"), "/") {
		if !strings.HasSuffix(part, ".slice") {
			return part == unit
		}
	}
	return false
}

// parse reads an address such as @0123456789abcdef/unit/web.service/web.si_token, where @ stands for a zero byte.
func parse(address string) (unit, name string, ok bool) {
	parts := strings.Split(address, "/")
	if len(parts) != 4 || !strings.HasPrefix(address, "@") || parts[1] != "unit" || parts[3] == "" || !owner.IsUnit(parts[2]) {
		return "", "", false
	}
	return parts[2], parts[3], true
}
