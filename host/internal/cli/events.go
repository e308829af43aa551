package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var recent int32
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened on the host, and go on as it happens",
		Long: "Show what happened on the host. With -o json each event is one line.",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			if recent < 0 || recent > 1000 {
				return &usageError{err: errors.New("-recent: from 0 to 1000")}
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			stream, err := client.Agent.Events(ctx, connect.NewRequest(&hostv1.EventsRequest{Recent: recent, Follow: follow}))
			if err != nil {
				return err
			}
			defer stream.Close()
			for stream.Receive() {
				if err := a.showEvent(stream.Msg()); err != nil {
					return err
				}
			}
			if ctx.Err() != nil {
				return nil // Interrupted, which is how following ends.
			}
			return stream.Err()
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	cmd.Flags().Int32Var(&recent, "recent", 20, "how many of the last events to show first, at most 1000")
	return cmd
}

func (a *app) showEvent(m *hostv1.EventsResponse) error {
	if a.format == formatJSON {
		return a.printJSON(m.GetEvent(), "")
	}
	e := m.GetEvent()
	line := fmt.Sprintf("%s  %-8s  %-12s  %s  %s", e.GetTime().AsTime().Local().Format(time.DateTime),
		e.GetTopic(), e.GetType(), e.GetSubject(), e.GetMessage())
	if details := joinMap(e.GetDetails()); details != "" {
		line += "  " + details
	}
	_, err := fmt.Fprintln(a.out, printable(line))
	return err
}
