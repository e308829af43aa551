// Command xds takes the first steps of Envoy: it reads a bootstrap, opens the stream that the bootstrap
// describes with the token in it, and prints the names of the clusters and listeners that Consul sends. It is
// for machines without Envoy.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pannier/pannier/test/lib/xds"
)

// patience bounds the wait for the first clusters and listeners.
const patience = 20 * time.Second

func main() {
	path := flag.String("c", "", "the `FILE` with the bootstrap")
	flag.Bool("disable-hot-restart", false, "is Envoy's")
	flag.Int("concurrency", 1, "is Envoy's")
	flag.Parse()
	if err := show(*path); err != nil {
		fmt.Fprintln(os.Stderr, "xds:", err)
		os.Exit(1)
	}
}

func show(path string) (err error) {
	b, err := xds.Read(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := xds.Open(ctx, b)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }() // everything expected has arrived
	if err := stream.Ready(); err != nil {
		return fmt.Errorf("the stream of %s: %w", b.GetNode().GetId(), err)
	}
	fmt.Println("node", b.GetNode().GetId())
	for _, name := range slices.Sorted(maps.Keys(stream.Clusters)) {
		fmt.Println("cluster", name)
	}
	for _, name := range slices.Sorted(maps.Keys(stream.Listeners)) {
		fmt.Println("listener", name)
	}
	return nil
}
