"""The page's style sheet: one accent, quiet axes, tabular figures, light and dark, and print."""

_COLORS = """
:root{color-scheme:light dark;
--bg:#fdfdfc;--panel:#f6f6f4;--line:#e3e3df;--ink:#1c2024;--soft:#5c636b;--faint:#8b929a;
--ok:#14795a;--bad:#c2410c;--warn:#a16207;--run:#1d64c8;--wait:#8b929a;--stop:#7c4d9e;
--ok-bg:#eef6f2;--bad-bg:#fdf0e9;--warn-bg:#fbf5e4;--run-bg:#edf3fc;--wait-bg:#f6f6f4;
--c1:#0f6cb6;--c2:#d2580a;--c3:#767c84;--c4:#0a8a68;--c5:#b4578f;--c6:#b98900;--c7:#4aa3d8;--c8:#3d4248;
--band:#f3f3f0;--accent:#0f6cb6;--shadow:0 6px 24px rgba(20,24,28,.14);
--low:15,108,182;--high:224,104,10}
@media (prefers-color-scheme:dark){:root{
--bg:#15181b;--panel:#1d2125;--line:#30353b;--ink:#e6e8ea;--soft:#a4abb3;--faint:#7b838c;
--ok:#4cc39a;--bad:#f58a52;--warn:#dfb23f;--run:#6fa8f5;--wait:#7b838c;--stop:#b990d8;
--ok-bg:#192823;--bad-bg:#31211a;--warn-bg:#2c2718;--run-bg:#1a2534;--wait-bg:#1d2125;
--c1:#5aaced;--c2:#f28b45;--c3:#949ba3;--c4:#46c39b;--c5:#dc8fbb;--c6:#dbb13c;--c7:#8fcdf2;--c8:#c5cad0;
--band:#1b1f23;--accent:#5aaced;--shadow:0 6px 24px rgba(0,0,0,.5);
--low:70,150,225;--high:240,130,50}}
"""

_PAGE = """
*{box-sizing:border-box}
html{scroll-padding-top:60px}
@media (prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
body{margin:0;background:var(--bg);color:var(--ink);
font:14.5px/1.5 ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1180px;margin:0 auto;padding:0 30px 80px}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:.86em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
p{margin:0 0 8px}
h1{font-size:34px;line-height:1.15;letter-spacing:-.02em;margin:2px 0 6px;font-weight:680;
overflow-wrap:anywhere}
h2{font-size:22px;letter-spacing:-.012em;margin:0 0 4px;font-weight:660}
h3{font-size:15px;margin:26px 0 10px;font-weight:640}
section{padding:46px 0 0}
section>h2+*:not(.lead){margin-top:14px}
.lead{color:var(--soft);margin-bottom:16px}
.quiet,.note{color:var(--faint)}.empty{color:var(--faint);font-style:italic}
.fine{font-size:12px;color:var(--faint);overflow-wrap:anywhere;white-space:pre-wrap}
.sr{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
.scroll{overflow-x:auto}
nav{position:sticky;top:0;z-index:5;display:flex;gap:20px;align-items:center;overflow-x:auto;
padding:0 max(30px,calc((100vw - 1120px)/2));height:46px;background:var(--bg);
border-bottom:1px solid var(--line);font-size:13px;white-space:nowrap}
nav a{color:var(--soft);line-height:45px;border-bottom:2px solid transparent}
nav a:hover{color:var(--ink);text-decoration:none}
nav a[aria-current]{color:var(--ink);border-color:var(--accent)}
nav .home{color:var(--ink);font-weight:640;margin-right:auto;display:flex;gap:7px;
align-items:center}
nav .home[aria-current]{border-color:transparent}
header{padding:40px 0 0}
.title{display:flex;justify-content:space-between;align-items:flex-end;gap:24px;flex-wrap:wrap}
.eyebrow{font-size:12.5px;color:var(--soft);margin:0 0 4px}
.run-id{color:var(--faint);margin:0}
.ok{--tone:var(--ok);--tint:var(--ok-bg)}.bad{--tone:var(--bad);--tint:var(--bad-bg)}
.warn,.retry{--tone:var(--warn);--tint:var(--warn-bg)}.run,.cached{--tone:var(--run);--tint:var(--run-bg)}
.wait,.skip{--tone:var(--wait);--tint:var(--wait-bg)}.stop{--tone:var(--stop);--tint:var(--wait-bg)}
.defs{position:absolute}
.sym{fill:none;stroke:var(--tone);stroke-width:2.1;stroke-linecap:round;stroke-linejoin:round}
.icon{width:15px;height:15px;flex:none;vertical-align:-2.5px}
.pill{display:inline-flex;gap:6px;align-items:center;color:var(--tone);background:var(--tint);
border-radius:99px;padding:1px 10px 1px 7px;font-size:12.5px;font-weight:560;white-space:nowrap}
.pill.big{font-size:21px;padding:7px 20px 7px 14px;font-weight:640}
.pill.big .icon{width:23px;height:23px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:18px 26px;
margin:26px 0 0;padding:18px 0 0;border-top:1px solid var(--line)}
.facts dt{font-size:12.5px;color:var(--soft)}.facts dd{margin:0;font-weight:600;font-size:15px}
.facts dd.quiet{font-weight:400;font-size:12.5px}
.headline{display:flex;flex-wrap:wrap;gap:24px 64px;background:var(--panel);border-radius:12px;
padding:22px 26px 18px;margin-top:26px;color:inherit}
.headline:hover{text-decoration:none}
.headline p{margin:0}.pair{display:flex;gap:26px;align-items:flex-start}
.headline-number{font-size:42px;line-height:1.12;font-weight:660;letter-spacing:-.03em}
.headline-number .unit{font-size:20px;font-weight:500;color:var(--soft);letter-spacing:0}
.headline-number.up{color:var(--ok)}.headline-number.down{color:var(--bad)}
.arrow{font-size:28px;color:var(--faint);line-height:48px}.ci{color:var(--soft);font-size:13.5px}
.gain{border-left:1px solid var(--line);padding-left:64px}
.mini{width:160px;height:18px;display:block;margin:5px 0 2px}
.problems{border-left:4px solid var(--bad);background:var(--bad-bg);border-radius:0 10px 10px 0;
padding:16px 22px 10px;margin-top:24px}
.problems>div{margin-bottom:8px}.problems p{margin:0 0 4px;font-size:16px}
.problems ul,.notes ul{margin:4px 0;padding-left:20px}
pre.error{color:var(--bad);margin:4px 0;max-height:22em;overflow:auto}
.notes{background:var(--warn-bg);border-radius:10px;padding:10px 18px;margin-top:22px}
.notes li{overflow-wrap:anywhere}
.callout{background:var(--tint);border-radius:8px;padding:9px 14px}
.factline{display:flex;flex-wrap:wrap;gap:4px 22px;color:var(--soft);align-items:center;
margin-bottom:14px}
details>summary{cursor:pointer;list-style-position:inside}
.more,.round-block,.gate{border-top:1px solid var(--line)}
.more:last-child,.round-block:last-child,.gate:last-child{border-bottom:1px solid var(--line)}
.more>summary,.round-block>summary{padding:9px 4px}.gate>summary{padding:5px 4px;font-size:13.5px}
.charts+.more{margin-top:20px}
.more>summary:hover,.gate>summary:hover,.round-block>summary:hover{background:var(--panel)}
.more[open]>summary,.gate[open]>summary{margin-bottom:6px}
.more[open],.gate[open],.round-block[open]{padding-bottom:16px}
"""

_TABLES = """
table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;font-weight:560;color:var(--soft);font-size:12px;white-space:nowrap}
thead th{border-bottom:1px solid var(--line);padding:5px 12px 5px 0;vertical-align:bottom}
td,tbody th{padding:6px 12px 6px 0;vertical-align:top;border-bottom:1px solid var(--line)}
tbody tr:last-child>*{border-bottom:0}
.num{text-align:right;white-space:nowrap}td.num{font-variant-numeric:tabular-nums}
th.num{padding-left:8px}.num+:not(.num){padding-left:14px}
.mark{width:24px}
tr:target{background:var(--run-bg)}
.check-name{font-weight:560;display:block;overflow-wrap:anywhere}
.check-what{color:var(--soft);display:block;font-size:12px;max-width:46ch;overflow-wrap:anywhere}
.check-what.mono{font-size:11.5px;max-width:none}
.check.bad .observed,.check.warn .observed{color:var(--tone);font-weight:640}
.observed,.threshold{max-width:210px;white-space:normal;overflow-wrap:anywhere}
.threshold{color:var(--soft)}
.severity{font-size:12px}.severity.block{font-weight:640}.severity.info{color:var(--faint)}
.severity.warn{color:inherit}
.origin{color:var(--faint);font-size:12px;overflow-wrap:anywhere}
td code{overflow-wrap:anywhere}
.offenders code{display:inline}.offenders>code{display:block;margin-top:4px;color:var(--soft)}
.gate>summary{display:grid;align-items:center;column-gap:14px;list-style:none;
grid-template-columns:34px minmax(110px,150px) 1fr 118px 110px 190px}
.gate>summary::-webkit-details-marker{display:none}
.gate>summary .pill{justify-self:end}
.gate[open]{background:var(--panel);margin:0 -18px;padding:0 18px 14px;border-radius:10px;
border-color:transparent}
.gate:target>summary{box-shadow:inset 3px 0 0 var(--accent)}
.edge{font-weight:680;color:var(--tone)}.gate-stage{font-weight:600;overflow-wrap:anywhere}
.gate-title{color:var(--soft)}.gate-count{color:var(--faint);font-size:13px}
.more .gate-count,.round-block .gate-count{margin-left:14px}
.ladder-table .why{font-size:12px;color:var(--soft);min-width:230px;text-align:left}
.benchmark .mean{font-weight:620}.benchmark .interval{color:var(--soft)}
.benchmark .row-all td{font-weight:640}.benchmark .row-family td:first-child{font-weight:600}
.benchmark .row-level td:first-child{padding-left:18px;color:var(--soft)}
.values{table-layout:fixed}.values th{width:46%;white-space:normal;overflow-wrap:anywhere;
font-weight:450;vertical-align:top;font-size:12.5px}
.values td{overflow-wrap:anywhere;white-space:pre-wrap}
.values td.origin{width:20%}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:8px 44px;
margin-bottom:22px}
.columns h3{margin-top:0}
.raw{max-height:60vh;overflow:auto;background:var(--panel);padding:12px;border-radius:8px}
"""

_FIGURES = """
svg text{fill:var(--ink);font-family:inherit}
figure{margin:0}.wide-figure{margin:0 0 22px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(335px,1fr));gap:26px 28px;
padding-top:4px}
.chart{width:100%;display:block}
.chart-figure{break-inside:avoid}
figcaption{display:flex;gap:8px;align-items:baseline;flex-wrap:wrap;margin-bottom:2px}
.chart-title{font-weight:620;font-size:13.5px;overflow-wrap:anywhere}
.chart-unit{color:var(--faint);font-size:12px}
.tick{font-size:10.5px;fill:var(--soft)!important}.tick.y{text-anchor:end}.tick.x{text-anchor:middle}
.axis-label{font-size:10.5px;fill:var(--faint)!important;text-anchor:middle}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--faint);stroke-width:1}
.zero{stroke:var(--soft);stroke-width:1}
.band{fill:var(--band)}.band-label{font-size:9.5px;fill:var(--faint)!important;text-anchor:middle}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke:var(--k)}
.dot{fill:var(--k)}
.c1,.k1{--k:var(--c1)}.c2,.k2{--k:var(--c2)}.c3,.k3{--k:var(--c3)}.c4,.k4{--k:var(--c4)}
.c5,.k5{--k:var(--c5)}.c6,.k6{--k:var(--c6)}.c7,.k7{--k:var(--c7)}.c8,.k8{--k:var(--c8)}
.cursor line{stroke:var(--faint)}
.reference{stroke:var(--bad);stroke-dasharray:3 3}
.reference-label{font-size:10px;fill:var(--bad)!important;text-anchor:end;paint-order:stroke;
stroke:var(--bg);stroke-width:3px}
.legend{display:flex;flex-wrap:wrap;gap:3px 18px;font-size:12px;color:var(--soft);margin-top:6px;
align-items:center}
.legend>span{display:inline-flex;align-items:center;gap:6px}
.charts .legend{margin:2px 0 0;padding-left:12px;gap:2px 14px}
.key{display:inline-block;width:14px;height:0;border-top:2.5px solid var(--k,var(--ink))}
.key.step{border-top-style:solid;height:5px;border-left:2.5px solid var(--k)}
.shape{width:26px;height:14px;fill:none;stroke:var(--soft)}
.dag{min-width:980px;width:100%;display:block}
.dag+.legend{margin-top:12px}
.stage{fill:var(--panel)}.stage.loose{fill:none;stroke:var(--line);stroke-dasharray:2 4}
.stage-name{font-size:12.5px;font-weight:620}.stage-note{font-size:11px;fill:var(--faint)!important}
.stage-outcome{font-size:11.5px;fill:var(--soft)!important;text-anchor:end}
.link{fill:none;stroke:var(--faint);stroke-width:1.2}.head{fill:var(--faint)}
.node{cursor:pointer}.node rect,.node>path{fill:var(--bg);stroke:var(--tone);stroke-width:1.3}
.node.bad rect,.node.bad>path,.node.run rect,.node.run>path{fill:var(--tint);stroke-width:2}
.node.wait rect,.node.wait>path,.node.skip rect,.node.skip>path{stroke-dasharray:3 3}
.node-name{font-size:11px;font-weight:560}.node-note{font-size:10.5px;fill:var(--soft)!important}
.node:hover{text-decoration:none}.node:hover rect,.node:hover>path{stroke-width:2.4}
.dag.focus .node:not(.on){opacity:.28}.dag.focus .link,.dag.focus .head{opacity:.45}
.node:focus-visible,.bar:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.timeline{min-width:900px;width:100%;display:block}
.hit{fill:transparent}.bar:hover .hit,.forest-row:hover .hit{fill:var(--panel)}
.bar-stage{font-size:11px;font-weight:620}.bar-name{font-size:11px;text-anchor:end;fill:var(--soft)!important}
.bar-time{font-size:10px;fill:var(--faint)!important}
.span{fill:var(--tone)}.span.ok{fill:var(--c1)}.span.replaced{fill:var(--bad-bg);stroke:var(--bad);
stroke-dasharray:2 2}
.ladder,.forest{min-width:860px;width:100%;display:block}
.window{fill:var(--band)}.window-line{stroke:var(--c3);stroke-width:2.4}
.level{stroke-width:3;stroke-linecap:round}.level.p99{stroke:var(--c2)}.level.p50{stroke:var(--c1)}
.point-label{font-size:10.5px;fill:var(--soft)!important;paint-order:stroke;stroke:var(--bg);
stroke-width:2px}
.decision{font-size:12px;font-weight:620;text-anchor:middle}
.ppl{stroke:var(--c4);fill:var(--c4);stroke-width:1.6}.ppl.open{fill:var(--bg)}
.k-window{--k:var(--c3)}.k-p99{--k:var(--c2)}.k-p50{--k:var(--c1)}.k-ppl{--k:var(--c4)}
.row-all{font-weight:640;font-size:12.5px}.row-family{font-weight:600;font-size:12.5px}
text.row-level{font-size:12px;fill:var(--soft)}
.whisker line{stroke:var(--k);stroke-width:1.8}.whisker circle{fill:var(--k)}
.whisker.d0,.d0{--k:var(--c3)}.whisker.d1,.d1{--k:var(--c1)}.whisker.d2,.d2{--k:var(--c6)}
.whisker.up{--k:var(--ok)}.whisker.down{--k:var(--bad)}.whisker.flat{--k:var(--c3)}
.whisker.d0 circle,.whisker.flat circle{fill:var(--bg);stroke:var(--k);stroke-width:1.8}
#tip{position:fixed;z-index:9;display:none;max-width:420px;background:var(--bg);color:var(--ink);
border:1px solid var(--line);border-radius:8px;box-shadow:var(--shadow);padding:8px 12px;
font-size:12.5px;pointer-events:none;overflow-wrap:anywhere}
#tip.on{display:block}.tip-title{font-weight:620}
.tip-row{display:flex;gap:8px;align-items:center}.tip-row b{margin-left:auto;padding-left:14px}
"""

_ROLLOUTS = """
.token-legend{margin-bottom:14px}
.ramp{display:inline-flex}.ramp i{width:15px;height:13px}
.group{margin:14px 0 26px}
.group-head{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--soft);font-size:13px}
.prompt-id{font-weight:640;color:var(--ink)}
.prompt{background:var(--panel);border-radius:8px;padding:10px 14px;margin:6px 0 4px;
max-height:16em;overflow:auto}
.sample{border-left:2px solid var(--line);padding:5px 0 5px 14px;margin:8px 0}
.sample-head{display:flex;flex-wrap:wrap;gap:3px 16px;align-items:center;font-size:12.5px;
color:var(--soft);margin-bottom:4px}
.sample-head b{color:var(--ink);font-weight:620}
.tokens{font:13px/1.72 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
white-space:pre-wrap;overflow-wrap:anywhere}
.tokens b,.legend b{font-weight:400;unicode-bidi:isolate;border-radius:2px;padding:1px 0}
.tokens b:hover{outline:1.5px solid var(--ink)}
.legend b{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;padding:1px 3px;
color:var(--ink)}
.cap{box-shadow:inset 0 0 0 1.5px var(--bad)}
.reflect{text-decoration:underline;text-decoration-thickness:2px;text-underline-offset:3px;
font-weight:700!important}
.w0{background:rgba(var(--low),.62)}.w1{background:rgba(var(--low),.47)}
.w2{background:rgba(var(--low),.34)}.w3{background:rgba(var(--low),.22)}
.w4{background:rgba(var(--low),.11)}.w6{background:rgba(var(--high),.11)}
.w7{background:rgba(var(--high),.22)}.w8{background:rgba(var(--high),.34)}
.w9{background:rgba(var(--high),.48)}.w10{background:rgba(var(--high),.64)}
.ramp .w5{background:var(--panel)}
.answer{margin:10px 0}.answer pre{background:var(--panel);border-radius:8px;padding:8px 12px}
"""

_PRINT = """
@media (max-width:760px){main{padding:0 16px 60px}.gain{border:0;padding:0}
.gate>summary{grid-template-columns:34px 1fr auto}.gate-title,.gate-count{display:none}
.headline-number{font-size:32px}}
@media print{nav,#tip{display:none}main{max-width:none;padding:0}section{padding-top:26px}
.gate,.sample,tr,figure{break-inside:avoid}h2,h3{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.scroll,pre.error,.prompt,.raw{overflow:visible;max-height:none}}
"""

STYLE = _COLORS + _PAGE + _TABLES + _FIGURES + _ROLLOUTS + _PRINT
