// A host for tests: it opens a supervisor with the configuration in its first argument (JSON) and prints the pid
// of the plugin in its second once that is up. It then verifies the file in its third, if there is one. It ends
// when it is killed, or normally when its standard input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

func main() {
	var cfg supervisor.Config
	if err := json.Unmarshal([]byte(os.Args[1]), &cfg); err != nil {
		fail(err)
	}
	if path := os.Getenv("HOST_EVENTS"); path != "" {
		cfg.OnPluginEvent = eventsTo(path)
	}
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Name: "host", Level: hclog.Debug})
	s := supervisor.New(cfg)
	if err := s.Open(context.Background()); err != nil {
		fail(err)
	}
	handle, err := s.Acquire(context.Background(), os.Args[2])
	if err != nil {
		fail(err)
	}
	handle.Release()
	for _, st := range s.Status() {
		if st.Name == os.Args[2] {
			fmt.Println(st.PID)
		}
	}
	if percent, err := strconv.Atoi(os.Getenv("HOST_CANARY")); err == nil {
		st, err := s.Canary(context.Background(), os.Args[2], percent)
		if err != nil {
			fail(err)
		}
		fmt.Println(st.Canary.PID)
	}
	if len(os.Args) > 3 {
		fmt.Println(s.Verify(context.Background(), os.Args[3]))
	}
	io.Copy(io.Discard, os.Stdin)
	if err := s.Close(); err != nil {
		fail(err)
	}
}

// eventsTo appends each event to a file, as a line of JSON.
func eventsTo(path string) func(supervisor.PluginEvent) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fail(err)
	}
	return func(e supervisor.PluginEvent) {
		line, err := json.Marshal(e)
		if err != nil {
			fail(err)
		}
		if _, err := f.Write(append(line, '\n')); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
