package browser

import (
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// forward returns an address of this machine at which the pages of a host can be opened, whose network is its own.
func forward(t *testing.T, to *testhost.Host, port string) string {
	t.Helper()
	l := check.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	pass := func(browser net.Conn) {
		defer browser.Close()
		var pages net.Conn
		err := to.Net.Do(func() (err error) {
			pages, err = (&net.Dialer{}).DialContext(context.Background(), "tcp", "127.0.0.1:"+port)
			return err
		})
		if err != nil {
			return // the plugin is not up
		}
		go func() {
			_, _ = io.Copy(pages, browser)
			_ = pages.Close()
		}()
		_, _ = io.Copy(browser, pages)
		_ = pages.Close()
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			go pass(conn)
		}
	}()
	return "http://" + l.Addr().String()
}

// The pages of one host show the cluster: a volume moves to another node while its page is open, and a node that is
// lost is the first thing to see.
func TestCluster(t *testing.T) {
	t.Parallel()
	block := strings.Replace(docpages.Block(t, "web.md", "config", "web"), "policy = \"web\"", "", 1) // ACLs are off
	c := testcluster.Start(t, testcluster.Options{
		Servers: 1, Nodes: 2, Plugins: []string{"web"}, Config: block,
		ServerConfig: "heartbeat_ttl = \"2s\"\nstop_after = \"60s\"\nstop_margin = \"30s\"",
	})
	server, from, to := c.Hosts[0], c.Hosts[1], c.Hosts[2]
	for _, id := range []string{"db", "media", "mail", "spare"} {
		c.Volume(server, id, "single-node-writer")
	}
	c.AwaitStarted(from, "postgres", "db")
	c.AwaitStarted(from, "gallery", "media")
	c.AwaitStarted(to, "dovecot", "mail")
	site := forward(t, server, "7480")
	b := newBrowser(t)
	b.open(site + "/volumes/default/db")
	b.live()
	b.sees(".way", from.Name)
	from.Run("workload", "stop", "postgres")
	c.AwaitStarted(to, "postgres", "db")
	b.sees(".way", to.Name)
	if state := value[string](b, "document.querySelector('h1 .badge').innerText"); state != "in use" {
		t.Errorf("a volume that node %s has is %s", to.Name, state)
	}
	b.picture("cluster-volume")

	b.open(forward(t, to, "7480") + "/") // it has no ledger, and so no counts
	b.sees(".tile", "the pages of a server count them")
	b.open(site + "/")
	b.sees(".tile", "3 claims")

	b.open(site + "/workloads")
	b.live()
	b.sees("main", "postgres")
	b.open(site + "/nodes")
	b.live()
	if bars := value[int](b, "document.querySelectorAll('.lease .bar').length"); bars != 3 {
		t.Errorf("%d of 3 nodes have a lease", bars)
	}
	b.picture("cluster-nodes")
	to.Kill()
	b.sees("main", "disconnected")
	b.picture("cluster-nodes-lost")
	b.open(site + "/")
	b.live()
	b.sees(".problems", to.Name+" sends no heartbeats")
	b.sees(".command", "pannier node status "+to.Name)
	b.looks()
	b.picture("cluster-overview")
	// Where ACLs are off, every user of the host reaches the port: nothing is changed there, whatever the configuration.
	r := &rig{Host: server, address: strings.TrimPrefix(site, "http://")}
	v := r.visit(t, "")
	res, text := v.post("/do/drain", url.Values{"form": {v.form}, "id": {from.Name}})
	if n := check.Must(server.Node(from.Name))(t); res.StatusCode != 403 || n.GetNode().GetDrain() != nil {
		t.Errorf("%s: %s", res.Status, text)
	}
}
