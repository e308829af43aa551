// Package browser tests the plugin web as its users see it: a real Chromium, driven by chromedp, with the pages of a
// real agent. It proves that each page is readable, reachable by keyboard and has contrast; that pages change while
// they are open; that nobody sees or does more than their token allows; and that nothing of a name is run.
//
// Each page leaves a picture in test/artefacts; with WIDTHS=1, those of a cluster in trouble in three widths and both
// colour schemes.
package browser
