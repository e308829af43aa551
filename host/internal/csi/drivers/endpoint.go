package drivers

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// endpoint is where a driver that the host runs is reached: a socket or, if two processes of it may run side by side, a
// link to the socket of the one that serves.
type endpoint struct {
	path    string
	overlap bool
}

func (i *instance) endpoint() endpoint { return endpoint{i.spec.socket(), i.spec.Overlap} }

// leadsTo returns the socket to which the endpoint leads; empty: it is no link of ours.
func (e endpoint) leadsTo() string {
	target, err := os.Readlink(e.path)
	if err != nil {
		return ""
	}
	for _, end := range ownSockets {
		if target == filepath.Base(e.path)+end {
			return e.path + end
		}
	}
	return ""
}

// isLink reports whether a process listens on a socket of its own, to which the endpoint leads. One that takes its
// endpoint from elsewhere would be in the way of another one.
func (e endpoint) isLink(own string) bool {
	return e.overlap && own != e.path && e.leadsTo() == own && !gone(own)
}

// lead makes the endpoint lead to a socket, which may not be there yet.
func (e endpoint) lead(socket string) error {
	next := e.path + ".next"
	err := os.Remove(next)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.Symlink(filepath.Base(socket), next) // relative: it may be seen under another path
	}
	if err == nil {
		err = os.Rename(next, e.path)
	}
	if err != nil {
		return fmt.Errorf("lead the endpoint to another socket: %w", err)
	}
	return nil
}

// afterAnother returns where a process that follows an ended one has to listen.
func (e endpoint) afterAnother() (string, error) {
	was := e.leadsTo()
	if err := e.clear(e.path); err != nil || !e.overlap {
		return e.path, err
	}
	if was == "" || e.clear(was) != nil {
		var err error
		if was, err = e.beside(); err != nil {
			return "", err
		}
	}
	return was, e.lead(was)
}

// beside returns a socket on which nobody listens.
func (e endpoint) beside() (string, error) {
	var errs []error
	for _, end := range ownSockets {
		err := e.clear(e.path + end)
		if err == nil {
			return e.path + end, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// clear makes the socket's folder and removes a socket that an ended process left there, since
// many drivers fail on it. If a process still answers on the socket, a second driver must not be
// started there.
func (e endpoint) clear(socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("make the socket's folder: %w", err)
	}
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	link := socket == e.path && e.leadsTo() != ""
	if info.Mode().Type() != fs.ModeSocket && !link {
		return fmt.Errorf("%s is not a socket: remove it", socket)
	}
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process already answers on %s: stop it, or declare the driver without a command", socket)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("check whether a process answers on the socket: %w", err)
	}
	if link && e.overlap {
		return nil // it is led to another socket
	}
	if err := os.Remove(socket); err != nil {
		return fmt.Errorf("remove the socket that an ended process left: %w", err)
	}
	return nil
}
