// Command hostpath-build builds the third-party CSI driver that the tests use, and its first version, into the
// directory given as its argument, and prints the path of the newer program.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/pannier/pannier/test/lib/hostpath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hostpath-build:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, the cache folder; got %d", len(args))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	bin, _, err := hostpath.Build(ctx, args[0])
	if err != nil {
		return err
	}
	fmt.Println(bin)
	return nil
}
