package nomad

import (
	"fmt"
	"net/http/httptrace"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testhost"
)

// pending makes a query in the background that waits for a change after an index. It returns once the query was sent.
func pending[T any](t *testing.T, index uint64, ask func(q *api.QueryOptions) (T, *api.QueryMeta, error)) (
	result func() (T, *api.QueryMeta),
) {
	t.Helper()
	sent, done := make(chan struct{}, 10), make(chan struct{})
	ctx := httptrace.WithClientTrace(testhost.Soon(t), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { sent <- struct{}{} },
	})
	var value T
	var meta *api.QueryMeta
	var err error
	go func() {
		defer close(done)
		value, meta, err = ask((&api.QueryOptions{WaitIndex: index, Namespace: "*"}).WithContext(ctx))
	}()
	<-sent
	return func() (T, *api.QueryMeta) {
		t.Helper()
		<-done
		check.NoError(t, err)
		return value, meta
	}
}

// A query with an index waits until something that it reads has changed after it.
func blocking(t *testing.T, r *rig) {
	vols, has := r.nomad.CSIVolumes(), func(list []*api.CSIVolumeListStub, id string) bool {
		return slices.ContainsFunc(list, func(v *api.CSIVolumeListStub) bool { return v.ID == id })
	}
	_, before, err := vols.List(&api.QueryOptions{Namespace: "*"})
	check.NoError(t, err)
	listed := pending(t, before.LastIndex, vols.List)
	r.create(t, definition("late"))
	if list, meta := listed(); !has(list, "late") || meta.LastIndex <= before.LastIndex {
		t.Errorf("the list has not waited for the volume: %v after %d", meta, before.LastIndex)
	}

	_, before, err = vols.Info("late", nil)
	check.NoError(t, err)
	info := pending(t, before.LastIndex, func(q *api.QueryOptions) (*api.CSIVolume, *api.QueryMeta, error) {
		q.Namespace = ""
		return vols.Info("late", q)
	})
	r.claim(t, "later", "late")
	if v, meta := info(); len(v.Allocations) != 1 || meta.LastIndex <= before.LastIndex {
		t.Errorf("the volume is %+v", v)
	}

	plugins := r.nomad.CSIPlugins()
	_, before, err = plugins.List(nil)
	check.NoError(t, err)
	known := pending(t, before.LastIndex, plugins.List)
	endpoint := hostpath.Start(t, t.TempDir(), "-nodeid", "other")
	r.Run("driver", "register", "other", "-endpoint", endpoint)
	if list, meta := known(); meta.LastIndex <= before.LastIndex ||
		!slices.ContainsFunc(list, func(p *api.CSIPluginListStub) bool { return p.ID == "other" }) {
		t.Errorf("the plugins are %v, %+v", list, meta)
	}
	r.Run("driver", "deregister", "other")

	// Without a change it is answered after its time, as it is.
	_, before, err = vols.List(&api.QueryOptions{Namespace: "*"})
	check.NoError(t, err)
	_, after, err := vols.List(&api.QueryOptions{Namespace: "*", WaitIndex: before.LastIndex, WaitTime: 1e6})
	if check.NoError(t, err); after.LastIndex < before.LastIndex {
		t.Errorf("after %+v came %+v", before, after)
	}
	for name, value := range map[string]string{"index": "x", "wait": "soon", "per_page": "-1", "filter": "ID == x"} {
		_, _, err := vols.List(&api.QueryOptions{Params: map[string]string{name: value}})
		refused(t, err, 400)
	}
	_, stale, err := vols.List(&api.QueryOptions{AllowStale: true})
	if check.NoError(t, err); !stale.KnownLeader {
		t.Errorf("stale: %+v", stale)
	}
}

// A client that waits loses nothing while the plugin's process is replaced: its query is answered, and the next process
// answers the next one.
func swap(t *testing.T, r *rig) {
	vols := r.nomad.CSIVolumes()
	list, meta, err := vols.List(&api.QueryOptions{Namespace: "*"})
	check.NoError(t, err)
	known := len(list)
	listed := pending(t, meta.LastIndex, vols.List)
	r.Run("plugin", "restart", plugin)
	r.Eventually("the process before has ended", func() error {
		res, err := r.Client().Plugins.ListPlugins(testhost.Soon(t), &hostv1.ListPluginsRequest{})
		if err != nil {
			return err
		}
		for _, p := range res.GetPlugins() {
			if p.GetName() == plugin && p.GetDraining() > 0 {
				return fmt.Errorf("%d processes are draining", p.GetDraining())
			}
		}
		return nil
	})
	same, at := listed()
	if len(same) != known || at.LastIndex < meta.LastIndex {
		t.Errorf("the query that waited has %d volumes at %+v, before %d at %+v", len(same), at, known, meta)
	}
	again := pending(t, at.LastIndex, vols.List)
	r.create(t, definition("after-the-swap"))
	if all, _ := again(); len(all) != known+1 {
		t.Errorf("the next query has %d volumes, want %d", len(all), known+1)
	}
}
