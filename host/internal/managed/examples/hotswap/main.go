// Command hotswap hosts one plugin and calls it all the time, while its file is replaced: see README.md.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/managed/examples/hotswap/shared"
	"github.com/pannier/pannier/host/internal/managed/goplugin"
)

func main() {
	plugin, data := os.Args[1], os.Args[2]
	transport := &goplugin.Transport{Handshake: shared.Handshake, Plugins: shared.Plugins(nil), Dir: data}
	set := managed.New(managed.Config{
		Name: "greeter", Store: managed.NewStore(data), Files: []managed.File{{Path: plugin}}, Transport: transport,
		RecordPath: filepath.Join(data, "record.json"), LogPath: filepath.Join(data, "greeter.log"), Log: hclog.Default(),
		Hooks: managed.Hooks{Stops: func(*managed.Process) bool { return true }},
	})
	ctx, stop := context.WithCancel(context.Background())
	go managed.WatchFiles(ctx, filepath.Dir(plugin), nil, 100*time.Millisecond, time.Second, nil, set.Recheck)
	go func() {
		defer stop()
		_, _ = os.Stdin.Read(make([]byte, 1)) // until somebody types a line, or closes it
	}()
	go load(transport)
	fmt.Println("the end:", set.Run(ctx))
}

// load calls the plugin from ten callers at once, and says which version answers.
func load(transport *goplugin.Transport) {
	answers := make(chan string)
	for range 10 {
		go func() {
			for {
				reply := &wrapperspb.StringValue{}
				conn, release, _ := transport.Acquire(context.Background()) // it waits as long as it takes
				if err := conn.Invoke(context.Background(), shared.Greet, wrapperspb.String("you"), reply); err != nil {
					fmt.Println("failed:", err)
				}
				release()
				answers <- reply.GetValue()
			}
		}()
	}
	for last, n := "", 1; ; n++ {
		if answer := <-answers; answer != last {
			fmt.Printf("%s, after %d calls\n", answer, n)
			last = answer
		}
	}
}
