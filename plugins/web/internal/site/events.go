package site

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// keptEvents is how many events an agent keeps.
const keptEvents = 1000

// topics are those of events, as the API names them.
var topics = []string{"agent", "claim", "device", "driver", "plugin", "service", "snapshot", "volume", "workload"}

// sinces are the choices of how far back the page goes.
var sinces = []string{"5m", "1h", "24h"}

type eventsData struct {
	Events              []*hostv1.Event
	Node                string
	Topic, Since, Match string
	Topics, Sinces      []string
	More                int
}

// maxEvents is how many events the page has.
const maxEvents = 200

func (s *Site) events(ctx context.Context, u user, r *http.Request) (any, error) {
	q := r.URL.Query()
	d := eventsData{Topic: q.Get("topic"), Since: q.Get("since"), Match: q.Get("match"), Topics: topics, Sinces: sinces}
	req := &hostv1.EventsRequest{Recent: keptEvents}
	if slices.Contains(topics, d.Topic) {
		req.Topics = []string{d.Topic}
	} else {
		d.Topic = ""
	}
	if ago, err := time.ParseDuration(d.Since); err == nil && slices.Contains(sinces, d.Since) {
		req.Since = timestamppb.New(time.Now().Add(-ago))
	} else {
		d.Since = ""
	}
	all, err := recent(ctx, u, req)
	if err != nil {
		return nil, err
	}
	match := strings.ToLower(d.Match)
	for _, e := range all {
		if strings.Contains(strings.ToLower(e.GetSubject()+" "+e.GetType()+" "+e.GetMessage()), match) {
			d.Events = append(d.Events, e)
		}
	}
	if len(d.Events) > maxEvents {
		d.More = len(d.Events) - maxEvents
		d.Events = d.Events[:maxEvents]
	}
	if status, err := ask(ctx, u, u.api.Agent.Status, &hostv1.StatusRequest{}); err == nil {
		d.Node = status.GetName()
	}
	return d, nil
}

// recent reads events, newest first.
func recent(ctx context.Context, u user, req *hostv1.EventsRequest) (all []*hostv1.Event, err error) {
	stream, err := u.api.Agent.Events(u.as(ctx), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		all = append(all, stream.Msg().GetEvent())
	}
	slices.SortStableFunc(all, func(a, b *hostv1.Event) int { return cmp.Compare(b.GetSeq(), a.GetSeq()) })
	return all, stream.Err()
}

// eventsOf returns the newest events about an object, or why there are none.
func (s *Site) eventsOf(ctx context.Context, u user, topics []string, about func(*hostv1.Event) bool,
) (found []*hostv1.Event, why string) {
	all, err := recent(ctx, u, &hostv1.EventsRequest{Recent: keptEvents, Topics: topics})
	if err != nil {
		return nil, reason(err)
	}
	all = slices.DeleteFunc(all, func(e *hostv1.Event) bool { return !about(e) })
	return all[:min(len(all), ownEvents)], ""
}
