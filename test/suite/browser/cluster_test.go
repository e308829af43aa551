package browser

import (
	"context"
	"fmt"
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
	r := &rig{Host: server, address: strings.TrimPrefix(site, "http://")}
	otherHosts(t, b, r, site, server, from, to)
	b.open(site + "/nodes")
	b.live()
	to.Kill()
	b.sees("main", "disconnected")
	b.picture("cluster-nodes-lost")
	b.open(site + "/plugins")
	b.sees(".wrong", "ask node \""+to.Name+"\"")
	b.sees("tbody", from.Name)
	b.open(site + "/")
	b.live()
	b.sees(".problems", to.Name+" sends no heartbeats")
	const ofNode = `[...document.querySelectorAll(".problems > li")].filter(e => e.innerText.includes(%q)).length == 1`
	b.sees(".with", to.Name+" cannot be reached")
	b.until("the lost node is one problem", fmt.Sprintf(ofNode, to.Name))
	b.sees(".command", "pannier node status "+to.Name)
	b.looks()
	b.picture("cluster-overview")
	// Where ACLs are off, every user of the host reaches the port: nothing is changed there, whatever the configuration.
	v := r.visit(t, "")
	res, text := v.post("/do/drain", url.Values{"form": {v.form}, "id": {from.Name}})
	if n := check.Must(server.Node(from.Name))(t); res.StatusCode != 403 || n.GetNode().GetDrain() != nil {
		t.Errorf("%s: %s", res.Status, text)
	}
}

// otherHosts looks at what only the other hosts know: their plugins, the steps of their workloads, their events.
func otherHosts(t *testing.T, b *browser, r *rig, site string, hosts ...*testhost.Host) {
	t.Helper()
	v := r.visit(t, "")
	_, first := v.get("/plugins")
	b.open(site + "/plugins")
	for _, h := range hosts {
		b.until("the plugins of "+h.Name, fmt.Sprintf("[...document.querySelectorAll('tbody tr')].some("+
			"row => row.cells[0].innerText == 'csi-bridge' && row.cells[1].innerText == %q)", h.Name))
		// Without JavaScript they are a link away: nobody waits for another host before the page opens.
		if link := "/plugins?node=" + h.Name; h != r.Host && !strings.Contains(first, link) {
			t.Errorf("the first answer has no link to %s", link)
		}
		if _, alone := v.get("/plugins?node=" + h.Name); !strings.Contains(alone, "csi-bridge") {
			t.Errorf("the plugins of %s alone are\n%s", h.Name, alone)
		}
	}
	b.looks()
	b.picture("cluster-plugins")
	to := hosts[len(hosts)-1]
	b.open(site + "/plugins/csi-bridge?node=" + to.Name)
	b.sees(".crumbs", to.Name)
	b.open(site + "/events?node=" + to.Name)
	b.live()
	b.sees(".events", "dovecot")
	to.Run("workload", "stop", "dovecot")
	b.sees(".events", "stopped")
	b.open(site + "/services?node=" + to.Name)
	b.sees("main h2", "Services on "+to.Name)
	b.open(site + "/checks?node=" + to.Name)
	b.sees("main .hint", to.Name+" was checked at")
	b.open(site + "/workloads")
	b.click("[...document.querySelectorAll('td a')].find(a => a.innerText == 'postgres')")
	b.live()
	b.sees(".steps", "publish")
	b.sees("main", to.Name)
	to.Run("workload", "stop", "postgres")
	b.sees(".steps", "undo")
}
