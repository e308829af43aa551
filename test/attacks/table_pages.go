package main

const (
	browserPkg  = "./test/suite/browser"
	anotherSite = "a page of another site, in the browser of a user"
)

// onPages are attacks on the pages of the plugin web.
var onPages = []attack{
	{
		who: anotherSite, tries: "post a form of the pages with the user's session (CSRF): drain a node",
		stops: "`Sec-Fetch-Site` and `Origin` must be the pages' own, each form has a token of its session, and the cookie is SameSite=Strict",
		pkg:   browserPkg, run: "^TestFormOfAnotherSite$",
		worked: "71f6f5e3, without that: from another port of this host: 303 See Other; the node is drained",
	},
	{
		who: anotherSite, tries: "read the pages by a name that resolves to this host (DNS rebinding)",
		stops: "pages answer to IP addresses, localhost and the names in `hosts` only",
		pkg:   browserPkg, run: "^TestRebinding$",
		worked: "71f6f5e3, without that: \"attacker.example\": 303 See Other: /sign-in?to=%2Fvolumes",
	},
	{
		who: weakToken, tries: "run a script in the browser of who looks at it, by the name of a volume or a token, a path or a filter",
		stops: "html/template escapes each text by its context, and the content security policy allows no inline script or style",
		pkg:   browserPkg, run: "^TestMarkupInNames$",
		worked: "71f6f5e3, with the token's name unescaped: /: [\"<img src=\\\"x\\\" onerror=\\\"hacked=1\\\">\" \"<script>hacked=1</script>\"…]; the policy stopped the script",
	},
	{
		who: weakToken, tries: "change something with a session that may only read, or where the pages have no actions",
		stops: "each call has the user's own token; without `actions` no form is taken",
		pkg:   browserPkg, run: "^TestReadOnlySession$",
		worked: "71f6f5e3, without that: where actions are off: 303 See Other",
	},
	{
		who: stranger, tries: "see by the pages what the plugin's own policy allows, without a token or with a weak one",
		stops: "a call for a user has the user's token, an empty one too, and none of the plugin's rights",
		pkg:   browserPkg, run: "^TestRightsOfThePluginAreNotLent$",
		worked: "71f6f5e3, without that: /volumes for nobody: 200 OK",
	},
	{
		who: "another user of the host, whom a browser there visits", tries: "get the session of the pages by serving something on another port of 127.0.0.1",
		stops: "without TLS, users sign in at a name below localhost that nobody else knows; at others there is no session",
		pkg:   "./plugins/web/internal/site", run: "^TestACookieIsForNoOtherPort$",
		worked:  "7e0896a: another port gets [\"127.0.0.1:36197: pannier=…\"]",
		remains: "names in `hosts` without TLS",
	},
}
