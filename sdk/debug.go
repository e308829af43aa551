package sdk

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/pannier/pannier/sdk/wire"
)

// serveUnattended serves p without a host, for a process that an author runs, mostly under a
// debugger, and prints what an agent must have in its environment to use it. The agent
// then starts the plugin's file as ever, and that process passes all calls on to this
// one (relay): this one can be halted and started again, and the agent kills nobody.
//
// The socket has no TLS: its folder is the user's own.
func serveUnattended(info Info, p Plugin) (exitCode int) {
	fail := func(err error) int {
		fmt.Fprintf(os.Stderr, "%s cannot be debugged: %v\n", info.Name, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "pannier-debug-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "plugin.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fail(err)
	}
	srv, stop := inProcess(info, p, "a signal")
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-end
		stop()
	}()
	attach, err := json.Marshal(map[string]string{info.Name: socket})
	if err != nil {
		return fail(err)
	}
	fmt.Fprintf(os.Stdout, "%s %s (%s) waits for calls, as process %d. With its file in plugin_dir, start an agent with:\n\n\t%s='%s'\n\n",
		info.Name, info.Version, p.Kind, os.Getpid(), wire.EnvReattach, attach)
	if err := srv.Serve(listener); err != nil {
		return fail(err)
	}
	if err := closeImpl(p.Impl); err != nil {
		return fail(err)
	}
	return 0
}
