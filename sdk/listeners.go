package sdk

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/sdk/wire"
)

// inherited are the listening sockets that the process was started with. They stay open while it runs: whoever serves
// one has a copy, so that the host can have another copy at any time.
type inherited struct {
	names []string
	files []*os.File
}

// listeners are this process's listeners.
var listeners = &inherited{}

// inherit takes what the host has left in the environment. Programs that the plugin runs do not get the sockets.
func (l *inherited) inherit() {
	names := os.Getenv(wire.EnvListeners)
	_ = os.Unsetenv(wire.EnvListeners)
	if names == "" {
		return
	}
	for n, name := range strings.Split(names, ",") {
		fd := wire.FirstListener + n
		unix.CloseOnExec(fd)
		l.names = append(l.names, name)
		l.files = append(l.files, os.NewFile(uintptr(fd), name))
	}
}

// Listeners are the names of the listening sockets that the host has opened for this plugin: those of the listen blocks
// in its plugin block. sdk/frontend serves them.
func Listeners() []string { return slices.Clone(listeners.names) }

// Listen returns a listener on one of Listeners. Closing it closes a copy: connections that wait are accepted by the
// plugin's next process, which has the same socket.
func Listen(name string) (net.Listener, error) {
	n := slices.Index(listeners.names, name)
	if n < 0 {
		return nil, fmt.Errorf("there is no listening socket %q: write listen %q { address = \"...\" } into the plugin's "+
			"block of the agent's configuration", name, name)
	}
	return net.FileListener(listeners.files[n])
}

// handOver sends copies of the sockets to the host's abstract unix socket.
func (l *inherited) handOver(ctx context.Context, socket string, nonce []byte) ([]string, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", "@"+socket)
	if err != nil {
		return nil, fmt.Errorf("hand over the listening sockets: %w", err)
	}
	defer conn.Close()
	var fds []int
	for _, f := range l.files {
		fds = append(fds, int(f.Fd()))
	}
	if _, _, err := conn.(*net.UnixConn).WriteMsgUnix(nonce, unix.UnixRights(fds...), nil); err != nil {
		return nil, fmt.Errorf("hand over the listening sockets: %w", err)
	}
	return l.names, nil
}
