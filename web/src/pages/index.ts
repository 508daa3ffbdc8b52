/** The pages, one file each. To add one, write its file and add it here. */
import type { ComponentType } from "react";
import { comparePage } from "./compare";
import { datasetPage } from "./dataset";
import { datasetsPage } from "./datasets";
import { evaluationPage } from "./evaluation";
import { exportsPage } from "./exports";
import { groupPage } from "./group";
import { memoriesPage } from "./memories";
import { groupsPage, rolloutsPage } from "./rollouts";
import { rowsPage } from "./rows";
import { runPage } from "./run";
import { runsPage } from "./runs";
import { tokensPage } from "./tokens";
import { topicsPage } from "./topics";

export interface PageSpec {
  /** The first part of the address, as in `#/runs`. */
  name: string;
  /** The name in the bar at the top; empty for a page that is only linked to. */
  title: string;
  /** The key after `g` that opens the page. */
  key: string;
  /** Whether the page sets the title of the browser's tab itself. */
  hasOwnTitle?: boolean;
  Page: ComponentType;
  /** Whether the page has something to show; a file holds the data of some pages only. */
  isOffered: () => boolean;
}

export const PAGES: PageSpec[] = [
  datasetPage, datasetsPage, rowsPage, topicsPage, evaluationPage, rolloutsPage, groupsPage, groupPage, runsPage, runPage, comparePage, memoriesPage, tokensPage, exportsPage,
];
