package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// store is the shared directory. A volume NAME is the directory NAME/data; NAME/attached has an empty file for
// each node that it is attached to. Nodes are files in .nodes.
type store struct{ dir string }

// join makes the directory and registers a node in it.
func (s store) join(node string) error {
	if err := os.MkdirAll(filepath.Join(s.dir, ".nodes"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, ".nodes", node), nil, 0o600)
}

func (s store) checkNode(node string) error {
	if _, err := os.Stat(filepath.Join(s.dir, ".nodes", filepath.Base(node))); err != nil {
		return status.Errorf(codes.NotFound, "no node %q", node)
	}
	return nil
}

// lock keeps the drivers of other hosts out until unlock.
func (s store) lock() (unlock func(), err error) {
	unlock, err = s.flock(".lock", unix.LOCK_EX)
	return unlock, internal(err)
}

// alone refuses a second deletion of a volume until end (CSI spec, Concurrency).
func (s store) alone(volume string) (end func(), err error) {
	end, err = s.flock(".delete-"+filepath.Base(volume), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, status.Errorf(codes.Aborted, "volume %q is being deleted", volume)
	}
	return end, internal(err)
}

func (s store) flock(file string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, file), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func (s store) path(volume string, part ...string) string {
	return filepath.Join(append([]string{s.dir, volume}, part...)...)
}

// check refuses names that are not volumes.
func (s store) check(volume string) error {
	if volume == "" || strings.ContainsAny(volume, "/\x00") || volume[0] == '.' {
		return status.Errorf(codes.InvalidArgument, "%q is no volume id", volume)
	}
	if _, err := os.Stat(s.path(volume, "data")); err != nil {
		return status.Errorf(codes.NotFound, "no volume %q", volume)
	}
	return nil
}

func (s store) attached(volume string) (nodes []string, err error) {
	found, err := os.ReadDir(s.path(volume, "attached"))
	for _, f := range found {
		nodes = append(nodes, f.Name())
	}
	return nodes, err
}

// record adds a line to the directory's log: nanoseconds of CLOCK_BOOTTIME, which all hosts of a test share, the
// node, the operation and its object.
func (s store) record(node, what, volume, where string) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	f, err := os.OpenFile(filepath.Join(s.dir, ".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	_, err = fmt.Fprintln(f, now.Nano(), node, what, volume, where)
	if err := errors.Join(err, f.Close()); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
